# Programs: the one binary `metroplex`, and what proves it.
find_package(CLI11 REQUIRED)

file(GLOB app_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/apps/*.cpp")
list(FILTER app_sources EXCLUDE REGEX "/main\\.cpp$")
add_library(metroplex_apps STATIC ${app_sources})
target_include_directories(metroplex_apps PUBLIC "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/apps")
target_compile_definitions(metroplex_apps PRIVATE FMT_HEADER_ONLY)  # torch's own fmt headers are the ones seen here
target_link_libraries(metroplex_apps PUBLIC metroplex_train CLI11::CLI11)
target_precompile_headers(metroplex_apps REUSE_FROM metroplex_pch)

add_executable(metroplex apps/main.cpp)
target_link_libraries(metroplex PRIVATE metroplex_apps)
target_precompile_headers(metroplex REUSE_FROM metroplex_pch)
install(TARGETS metroplex)

# metroplex_parity replays golden runs.
add_executable(metroplex_parity tests/parity/main.cpp tests/parity/spec.cpp)
target_include_directories(metroplex_parity PRIVATE "${CMAKE_SOURCE_DIR}/tests")
target_link_libraries(metroplex_parity PRIVATE metroplex_apps)
target_precompile_headers(metroplex_parity REUSE_FROM metroplex_pch)
file(GLOB golden_runs CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/vectors/golden/*.json")
list(FILTER golden_runs EXCLUDE REGEX "golden_index\\.json$")
foreach(run IN LISTS golden_runs)
  get_filename_component(name "${run}" NAME_WE)
  foreach(backend threads gloo)
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
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200 RUN_SERIAL ON)  # they measure seconds
endforeach()
find_program(PYTHON3 python3 REQUIRED)
add_test(NAME layers COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/scripts/check_layers.py")
add_test(NAME format COMMAND bash "${CMAKE_SOURCE_DIR}/scripts/check_format.sh")

# What bench/*.md measures; built by name only.
file(GLOB bench_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/*.cpp")
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE metroplex_train)
  target_precompile_headers(${name} REUSE_FROM metroplex_pch)
endforeach()
