# A module is a folder LAYER/NAME of metroplex/, a static library metroplex_NAME and a test binary NAME_test.
#   metroplex_module(core/topology [WIRING] LINKS metroplex_base TESTS metroplex_draw)
# WIRING: the module has no loop over elements, tokens or samples (METROPLEX_QUICK).
# TESTS: libraries that only its tests use.
# Includes name the module without its layer. The include path of a layer comes with its libraries, so core/ cannot
# include lab/ or formats/.
# Sources are globbed: a new file needs no line here. The setup scripts compile many files as one unit
# (CMAKE_UNITY_BUILD). Names in unnamed namespaces must therefore be unique in a module, and each test file has its
# own namespace. The link lists are the layers of docs/tour.md; scripts/check_layers.py checks the includes against
# them.
function(metroplex_module folder)
  cmake_parse_arguments(MODULE "TORCH;WIRING" "" "LINKS;EXCLUDE;TESTS" ${ARGN})
  cmake_path(GET folder FILENAME name)
  cmake_path(SET layer NORMALIZE "${CMAKE_SOURCE_DIR}/metroplex/${folder}/..")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/metroplex/${folder}/*.cpp")
  foreach(pattern IN LISTS MODULE_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  if(sources)
    add_library(metroplex_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(metroplex_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(metroplex_${name} ${scope} "${layer}")
  target_link_libraries(metroplex_${name} ${scope} ${MODULE_LINKS} Threads::Threads)
  if(MODULE_WIRING)
    target_compile_options(metroplex_${name} PRIVATE ${METROPLEX_QUICK})
  endif()
  if(MODULE_TORCH)
    target_link_libraries(metroplex_${name} ${scope} torch_base)
    if(sources)
      target_precompile_headers(metroplex_${name} REUSE_FROM metroplex_pch)
    endif()
  endif()

  file(GLOB tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp")
  file(GLOB procs CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*_procs_test.cpp")
  file(GLOB gpu CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*_cuda_test.cpp")
  file(GLOB nccl CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*_nccl_test.cpp")
  list(REMOVE_ITEM tests ${procs} ${gpu} ${nccl})
  set(libraries metroplex_${name} ${MODULE_TESTS})
  if(tests)
    metroplex_test(${name}_test "${MODULE_TORCH}" "${libraries}" ${tests})
  endif()
  if(procs)
    metroplex_test(${name}_procs_test "${MODULE_TORCH}" "${libraries}" ${procs})
  endif()
  if(gpu AND have_cuda)  # ctest -L gpu runs the GPU tests; libtorch without CUDA cannot detect a GPU
    metroplex_test(${name}_gpu_test "${MODULE_TORCH}" "${libraries}" ${gpu})
    set_tests_properties(${name}_gpu_test PROPERTIES LABELS gpu)
  endif()
  if(nccl)  # ctest -L nccl: processes over NCCL, which may share a GPU
    metroplex_test(${name}_nccl_test "${MODULE_TORCH}" "${libraries}" ${nccl})
    set_tests_properties(${name}_nccl_test PROPERTIES LABELS nccl)
  endif()
endfunction()

function(metroplex_test target torch libraries)
  add_executable(${target} ${ARGN})
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
  target_compile_definitions(${target} PRIVATE METROPLEX_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${libraries} GTest::gtest_main)
  target_compile_options(${target} PRIVATE ${METROPLEX_QUICK})
  if(torch)
    target_precompile_headers(${target} REUSE_FROM metroplex_pch)
  endif()
  # Suites that take minutes are split into several entries, which run in parallel and start first.
  set(names ${target})
  if(DEFINED ${target}_shards)
    set(names "")
    math(EXPR last "${${target}_shards} - 1")
    foreach(shard RANGE ${last})
      list(APPEND names ${target}.${shard})
      add_test(NAME ${target}.${shard} COMMAND "${CMAKE_SOURCE_DIR}/tests/support/shard.sh" ${target}.${shard} ${shard}
        ${${target}_shards} "$<TARGET_FILE:${target}>")
      set_tests_properties(${target}.${shard} PROPERTIES COST 100)
    endforeach()
  else()
    add_test(NAME ${target} COMMAND ${target})
  endif()
  # Rank threads share the cores, so each has one OpenMP thread. The working directory is the source tree
  # (tests/vectors, tests/golden).
  set_tests_properties(${names} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1" WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" TIMEOUT 900)
endfunction()
