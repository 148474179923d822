# Programs that use tensors, and tests of the binary.
file(GLOB upper_app_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/apps/upper/*.cpp")
list(FILTER upper_app_sources EXCLUDE REGEX "/torch_program\\.cpp$")
add_library(metroplex_upper_apps STATIC ${upper_app_sources})
target_compile_options(metroplex_upper_apps PRIVATE ${METROPLEX_QUICK})
target_link_libraries(metroplex_upper_apps PUBLIC metroplex_apps metroplex_run metroplex_verify)
target_precompile_headers(metroplex_upper_apps REUSE_FROM metroplex_pch)

add_executable(metroplex-torch apps/upper/torch_program.cpp)
target_link_libraries(metroplex-torch PRIVATE metroplex_main metroplex_upper_apps)
target_precompile_headers(metroplex-torch REUSE_FROM metroplex_pch)
add_dependencies(metroplex metroplex-torch)  # `metroplex` starts it
install(TARGETS metroplex-torch)

# parity_program(NAME FOLDER): a program of tests/FOLDER. The caller links it, so that scripts/check_layers.py can
# read the list.
function(parity_program name folder)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp")
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
  target_compile_options(${name} PRIVATE ${METROPLEX_QUICK})
  target_precompile_headers(${name} REUSE_FROM metroplex_pch)
endfunction()

parity_program(metroplex_parity parity)
target_link_libraries(metroplex_parity PRIVATE metroplex_upper_apps)
file(GLOB golden_runs CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/vectors/golden/*.json")
list(FILTER golden_runs EXCLUDE REGEX "golden_index\\.json$")
# Over sockets only one run per communication pattern, because results do not depend on the backend.
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

# metroplex_hf_parity compares Hugging Face directories with results of transformers.
parity_program(metroplex_hf_parity hf_parity)
target_link_libraries(metroplex_hf_parity PRIVATE metroplex_upper_apps)

file(GLOB hf_directories CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/vectors/hf/*/expected.json")
list(TRANSFORM hf_directories REPLACE "/expected\\.json$" "")
set(hf_even_heads ${hf_directories})
list(FILTER hf_even_heads EXCLUDE REGEX "/gpt2_fp16$")  # has 3 heads
set(hf_experts ${hf_directories})
list(FILTER hf_experts INCLUDE REGEX "/(mixtral|qwen3_moe|qwen3_next$|qwen3_5_moe|deepseek|gpt_oss|kimi_k2|glm4_moe|ernie4_5_moe|nemotron_h_latent|minimax$|minimax_factors)")  # an even number
# hf_parity_test(NAME DIRECTORIES OPTIONS...)
function(hf_parity_test name directories)
  add_test(NAME hf_parity_${name} COMMAND metroplex_hf_parity ${${directories}} ${ARGN})
  set_tests_properties(hf_parity_${name} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1" TIMEOUT 300)
endfunction()
hf_parity_test(one hf_directories)
hf_parity_test(tp2 hf_even_heads --tp 2)
hf_parity_test(pp2 hf_directories --pp 2)
hf_parity_test(tp2_sp_pp2 hf_even_heads --tp 2 --sp --pp 2)
hf_parity_test(ep2 hf_experts --ep 2)
hf_parity_test(cp2 hf_directories --cp 2)
# Every directory must fail, and fail in the comparison. An error without a comparison prints its reason after a
# colon.
list(LENGTH hf_directories hf_count)
foreach(fault zero_tensor scaled_norm)
  hf_parity_test(planted_${fault} hf_directories --plant ${fault})
  set_tests_properties(hf_parity_planted_${fault} PROPERTIES
    PASS_REGULAR_EXPRESSION "${hf_count} directories, ${hf_count} failed" FAIL_REGULAR_EXPRESSION "FAIL [^\n]*: ")
endforeach()

# Logits of checkpoints of Megatron-LM, recorded by Megatron itself (tests/vectors/megatron_checkpoints).
set(megatron_cases "${CMAKE_SOURCE_DIR}/tests/vectors/megatron_checkpoints")
foreach(model gpt llama moe latent)
  file(GLOB cases "${megatron_cases}/${model}_*")
  add_test(NAME megatron_checkpoints_${model} COMMAND metroplex_hf_parity ${cases}
    --tokens "${megatron_cases}/${model}/tokens.json" --recorded "${megatron_cases}/${model}/logits.safetensors")
  set_tests_properties(megatron_checkpoints_${model} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1" TIMEOUT 300)
  list(LENGTH cases count)
  foreach(fault zero_tensor scaled_norm)
    add_test(NAME megatron_checkpoints_${model}_${fault} COMMAND metroplex_hf_parity ${cases} --plant ${fault}
      --tokens "${megatron_cases}/${model}/tokens.json" --recorded "${megatron_cases}/${model}/logits.safetensors")
    set_tests_properties(megatron_checkpoints_${model}_${fault} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1" TIMEOUT 300
      PASS_REGULAR_EXPRESSION "${count} directories, ${count} failed" FAIL_REGULAR_EXPRESSION "FAIL [^\n]*: ")
  endforeach()
endforeach()

# The tensor runners of metroplex_vectors.
file(GLOB tensor_runners CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/conformance/tensor/*.cpp")
target_sources(metroplex_vectors PRIVATE ${tensor_runners})
target_compile_definitions(metroplex_vectors PRIVATE METROPLEX_TORCH)
target_link_libraries(metroplex_vectors PRIVATE metroplex_step)

# Tests that run the binary, and repository checks.
file(GLOB app_tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/apps/*_test.sh")
foreach(script IN LISTS app_tests)
  get_filename_component(script_name "${script}" NAME_WE)
  set(name "app_${script_name}")  # distinguishes them from the modules' test binaries
  add_test(NAME ${name} COMMAND bash "${script}" "$<TARGET_FILE:metroplex>" WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200)
  if(name STREQUAL "app_at_once_test")  # limits its programs to seconds
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
add_test(NAME language COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/scripts/check_language.py")
add_test(NAME language_rules COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/tests/scripts/language_test.py")
add_test(NAME mutants_apply COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/tests/scripts/mutants_test.py")
add_test(NAME evidence COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/tests/scripts/evidence_test.py")
add_test(NAME format COMMAND bash "${CMAKE_SOURCE_DIR}/scripts/check_format.sh")

# The programs for bench/*.md; built by name, or all by the target `benches`.
add_custom_target(benches)
file(GLOB bench_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/*.cpp")
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE metroplex_run metroplex_verify metroplex_clock metroplex_apps)
  target_precompile_headers(${name} REUSE_FROM metroplex_pch)
  add_dependencies(benches ${name})
endforeach()
