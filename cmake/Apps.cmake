# Programs of the upper floor, and what proves the binary.
file(GLOB upper_app_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/apps/upper/*.cpp")
list(FILTER upper_app_sources EXCLUDE REGEX "/torch_program\\.cpp$")
add_library(metroplex_upper_apps STATIC ${upper_app_sources})
target_compile_options(metroplex_upper_apps PRIVATE ${METROPLEX_QUICK})
target_link_libraries(metroplex_upper_apps PUBLIC metroplex_apps metroplex_preflight)
target_precompile_headers(metroplex_upper_apps REUSE_FROM metroplex_pch)

add_executable(metroplex-torch apps/upper/torch_program.cpp)
target_link_libraries(metroplex-torch PRIVATE metroplex_main metroplex_upper_apps)
target_precompile_headers(metroplex-torch REUSE_FROM metroplex_pch)
add_dependencies(metroplex metroplex-torch)  # which `metroplex` starts
install(TARGETS metroplex-torch)

# metroplex_parity replays golden runs.
file(GLOB parity_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/parity/*.cpp")
add_executable(metroplex_parity ${parity_sources})
target_include_directories(metroplex_parity PRIVATE "${CMAKE_SOURCE_DIR}/tests")
target_compile_options(metroplex_parity PRIVATE ${METROPLEX_QUICK})
target_link_libraries(metroplex_parity PRIVATE metroplex_upper_apps)
target_precompile_headers(metroplex_parity REUSE_FROM metroplex_pch)
file(GLOB golden_runs CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/vectors/golden/*.json")
list(FILTER golden_runs EXCLUDE REGEX "golden_index\\.json$")
# Over sockets one run of each pattern of communication: what is computed does not depend on the backend.
set(gloo_runs "^(llama_1|gpt_dp2|gpt_dp2_distopt|gpt_tp2|gpt_pp2_vpp2|llama_bf16_qknorm_tp2_sp|llama_fp16_pp2_dp2_distopt|llama_tp2_pp2_vpp2|moe_ep2|moe_allgather_ep2)$")
foreach(run IN LISTS golden_runs)
  get_filename_component(name "${run}" NAME_WE)
  set(backends threads)
  if(name MATCHES "${gloo_runs}")
    list(APPEND backends gloo)
  endif()
  foreach(backend IN LISTS backends)
    add_test(NAME parity_${name}_${backend} COMMAND metroplex_parity "${run}" --backend ${backend})
    set_tests_properties(parity_${name}_${backend} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1" TIMEOUT 300)
  endforeach()
endforeach()

# The tensor runners of metroplex_vectors.
file(GLOB tensor_runners CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/conformance/tensor/*.cpp")
target_sources(metroplex_vectors PRIVATE ${tensor_runners})
target_compile_definitions(metroplex_vectors PRIVATE METROPLEX_TORCH)
target_link_libraries(metroplex_vectors PRIVATE metroplex_train)

# Tests that drive the binary, and the house rules.
file(GLOB app_tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/apps/*_test.sh")
foreach(script IN LISTS app_tests)
  get_filename_component(script_name "${script}" NAME_WE)
  set(name "app_${script_name}")  # apart from the rooms' test binaries
  add_test(NAME ${name} COMMAND bash "${script}" "$<TARGET_FILE:metroplex>" WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200)
  if(name STREQUAL "app_at_once_test")  # it holds what it runs to seconds
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endforeach()
set(links_no_cuda "!")
if(have_cuda)
  set(links_no_cuda "")
endif()
add_test(NAME links COMMAND bash -c "${links_no_cuda} ldd '$<TARGET_FILE:metroplex-torch>' | grep libtorch_cuda")
add_test(NAME layers COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/scripts/check_layers.py")
add_test(NAME layers_breaches COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/tests/scripts/check_layers_test.py")
add_test(NAME mutants_apply COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/tests/scripts/mutants_test.py")
add_test(NAME format COMMAND bash "${CMAKE_SOURCE_DIR}/scripts/check_format.sh")

# What bench/*.md measures; built by name only.
file(GLOB bench_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/*.cpp")
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE metroplex_train metroplex_apps)
  target_precompile_headers(${name} REUSE_FROM metroplex_pch)
endforeach()
