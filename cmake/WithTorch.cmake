# Modules with torch. The CUDA part requires a complete wheel; kernels also require nvcc.
include(TorchWheel)
# Tensor cores support bf16 from 8.0 on, and code for 80 also runs on 86 and 89. PTX supports GPUs newer than 90.
# Override with -DCMAKE_CUDA_ARCHITECTURES=90a-real, or CUDAARCHS in the environment.
set(METROPLEX_DEFAULT_ARCHITECTURES 80-real 86-real 90a-real 100a-real 103a-real 90-virtual)
set(have_cuda OFF)
set(have_kernels OFF)
if(METROPLEX_CUDA AND TARGET torch::cuda)
  set(have_cuda ON)
  find_program(METROPLEX_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(METROPLEX_NVCC AND NOT METROPLEX_SANITIZE)
    set(CMAKE_CUDA_COMPILER "${METROPLEX_NVCC}")
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # the wheel's shared cudart, not a second, static one
    if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES ${METROPLEX_DEFAULT_ARCHITECTURES})
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 has no C++20 flag for nvcc
    set(have_kernels ON)
  endif()
endif()
message(STATUS "torch ${TORCH_WHEEL_VERSION}, CUDA libraries: ${have_cuda}, CUDA kernels: ${have_kernels} ${TORCH_WHEEL_NO_CUDA_REASON}")

add_library(torch_base INTERFACE)
target_include_directories(torch_base SYSTEM INTERFACE "${CMAKE_SOURCE_DIR}/third_party/gloo_names")
if(have_cuda)
  target_link_libraries(torch_base INTERFACE torch::cuda)
else()
  target_link_libraries(torch_base INTERFACE torch::cpu)
endif()

# Without -fopenmp at::parallel_for is serial in our files. The flag must be equal in all targets because of the
# header below.
target_compile_options(torch_base INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_options(torch_base INTERFACE -fopenmp)

# One precompiled header for all torch targets. g++ ignores it silently if flags differ (-Winvalid-pch warns).
file(WRITE "${CMAKE_BINARY_DIR}/pch.cpp" "")
add_library(metroplex_pch STATIC "${CMAKE_BINARY_DIR}/pch.cpp")
target_link_libraries(metroplex_pch PUBLIC torch_base)
target_precompile_headers(metroplex_pch PRIVATE <ATen/ATen.h> <string> <vector> <memory> <functional> <map>)

# Files no_*.cpp are stubs for libraries that the machine lacks.
set(cuda_exclude "no_such_file")
if(have_cuda)
  list(APPEND cuda_exclude "/no_cuda\\.cpp$" "/no_cuda_graph\\.cpp$" "/no_nccl\\.cpp$")
else()
  list(APPEND cuda_exclude "/device\\.cpp$" "/code_product\\.cpp$" "/cuda_graph_calls\\.cpp$" "/nccl\\.cpp$")
endif()

# Loops over many types and instruction sets. Unity builds would not help, because headers are cheap here, and names
# would conflict.
file(GLOB cpu_kernels CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/metroplex/core/kernels/*.cpp")
set_source_files_properties(${cpu_kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
metroplex_module(core/device TORCH LINKS metroplex_base EXCLUDE ${cuda_exclude})
metroplex_module(core/kernels TORCH LINKS metroplex_device metroplex_plan EXCLUDE "/no_nvcc\\.cpp$")
file(GLOB cuda_kernels CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/metroplex/core/kernels/*.cu")
if(cuda_kernels AND have_kernels)
  add_library(metroplex_cuda_kernels STATIC ${cuda_kernels})  # raw pointers: no torch header in a .cu
  target_include_directories(metroplex_cuda_kernels PRIVATE "${CMAKE_SOURCE_DIR}/metroplex/core")
  # Device code uses constexpr host functions (base/philox.h).
  target_compile_options(metroplex_cuda_kernels PRIVATE --expt-relaxed-constexpr --Werror=all-warnings -Xcompiler=-Wall,-Wextra)
  target_link_libraries(metroplex_cuda_kernels PUBLIC metroplex_base torch::libcudart)
  list(JOIN CMAKE_CUDA_ARCHITECTURES "," architectures)
  set_source_files_properties("${CMAKE_SOURCE_DIR}/metroplex/core/kernels/compiled.cu" PROPERTIES
    COMPILE_DEFINITIONS "METROPLEX_CUDA_ARCHITECTURES=\"${architectures}\"")
  target_link_libraries(metroplex_kernels PUBLIC metroplex_cuda_kernels)
else()
  file(GLOB no_nvcc CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/metroplex/core/kernels/no_nvcc.cpp")
  target_sources(metroplex_kernels PRIVATE ${no_nvcc})
endif()
metroplex_module(core/graph TORCH LINKS metroplex_device EXCLUDE ${cuda_exclude} TESTS metroplex_kernels)
metroplex_module(lab/tape_check TORCH LINKS metroplex_graph)
metroplex_module(core/comm TORCH LINKS metroplex_device metroplex_topology EXCLUDE ${cuda_exclude} TESTS metroplex_tape_check)
metroplex_module(lab/clock TORCH LINKS metroplex_comm metroplex_price)
metroplex_module(core/nn TORCH LINKS metroplex_config metroplex_kernels metroplex_comm TESTS metroplex_clock)
metroplex_module(core/moe TORCH LINKS metroplex_nn)
metroplex_module(core/models TORCH LINKS metroplex_moe)
metroplex_module(core/pipeline TORCH LINKS metroplex_nn metroplex_graph)
metroplex_module(core/distributed TORCH LINKS metroplex_nn)
metroplex_module(core/optim TORCH LINKS metroplex_distributed)
metroplex_module(core/step TORCH LINKS metroplex_models metroplex_pipeline metroplex_optim metroplex_data metroplex_checkpoint)
metroplex_module(lab/forecast TORCH LINKS metroplex_step metroplex_replay)
metroplex_module(lab/verify TORCH LINKS metroplex_step metroplex_tape_check)
set(run_test_shards 8)
metroplex_module(run TORCH LINKS metroplex_forecast metroplex_foreign metroplex_text TESTS metroplex_verify metroplex_draw metroplex_clock)
target_include_directories(run_test PRIVATE "${CMAKE_SOURCE_DIR}/bench")  # imposed_times.h
target_include_directories(forecast_test PRIVATE "${CMAKE_SOURCE_DIR}/bench")  # step_cases.h
include(Apps)
