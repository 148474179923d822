# Integers, files and text: no torch, no CUDA. Builds in seconds and runs under the sanitizers and libFuzzer.
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)

metroplex_room(base)
metroplex_room(config WIRING LINKS metroplex_base yaml-cpp nlohmann_json::nlohmann_json)
metroplex_room(megatron WIRING LINKS metroplex_base metroplex_config PkgConfig::SECCOMP)
# Megatron's rules whole, which ours are held to.
file(GLOB oracle_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/megatron/oracle/*.cpp")
add_library(megatron_oracle STATIC ${oracle_sources})
target_include_directories(megatron_oracle PRIVATE "${CMAKE_SOURCE_DIR}/tests")
target_compile_options(megatron_oracle PRIVATE ${METROPLEX_QUICK})
target_link_libraries(megatron_oracle PUBLIC metroplex_megatron)
target_link_libraries(megatron_test PRIVATE megatron_oracle)
metroplex_room(files LINKS metroplex_base nlohmann_json::nlohmann_json PkgConfig::XXHASH)
metroplex_room(text LINKS metroplex_base metroplex_files nlohmann_json::nlohmann_json PkgConfig::PCRE2
  PkgConfig::SENTENCEPIECE PkgConfig::UTF8PROC)
metroplex_room(topology LINKS metroplex_base metroplex_config nlohmann_json::nlohmann_json)
metroplex_room(plan LINKS metroplex_base metroplex_config metroplex_topology nlohmann_json::nlohmann_json)
metroplex_room(checkpoint LINKS metroplex_base metroplex_files nlohmann_json::nlohmann_json)
metroplex_room(data LINKS metroplex_base metroplex_config metroplex_files metroplex_text)

# The one binary; cmake/Apps.cmake has the part of it that needs tensors.
file(GLOB app_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/apps/*.cpp")
list(FILTER app_sources EXCLUDE REGEX "/(main|ground_program)\\.cpp$")
add_library(metroplex_apps STATIC ${app_sources})
target_include_directories(metroplex_apps PUBLIC "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/apps")
target_compile_definitions(metroplex_apps PRIVATE FMT_HEADER_ONLY)  # nothing of fmt 9 may meet the fmt 12 inside libtorch
target_compile_options(metroplex_apps PRIVATE ${METROPLEX_QUICK})
target_link_libraries(metroplex_apps PUBLIC metroplex_megatron metroplex_plan metroplex_data metroplex_checkpoint CLI11::CLI11)
file(GLOB app_cpp_tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/apps/*_test.cpp")
metroplex_test(apps_test "" metroplex_apps ${app_cpp_tests})
add_library(metroplex_main OBJECT apps/main.cpp)
target_compile_definitions(metroplex_main PRIVATE METROPLEX_VERSION="${PROJECT_VERSION}")
target_link_libraries(metroplex_main PUBLIC metroplex_apps)
add_executable(metroplex apps/ground_program.cpp)
target_link_libraries(metroplex PRIVATE metroplex_main)
install(TARGETS metroplex)

# What bench/*-echo.md shows; built by name only, as the programs of cmake/Apps.cmake.
file(GLOB echo_bench_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/echo/*.cpp")
add_executable(echo_bench EXCLUDE_FROM_ALL ${echo_bench_sources})
target_link_libraries(echo_bench PRIVATE metroplex_files metroplex_plan CLI11::CLI11)

# metroplex_vectors replays tests/vectors; its tensor runners need the upper floor.
file(GLOB vector_runners CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/conformance/*.cpp")
add_executable(metroplex_vectors ${vector_runners})
target_include_directories(metroplex_vectors PRIVATE "${CMAKE_SOURCE_DIR}/tests")
target_compile_options(metroplex_vectors PRIVATE ${METROPLEX_QUICK})
target_link_libraries(metroplex_vectors PRIVATE megatron_oracle metroplex_megatron metroplex_files metroplex_text metroplex_topology metroplex_plan metroplex_data)
add_test(NAME metroplex_vectors COMMAND metroplex_vectors "${CMAKE_SOURCE_DIR}/tests/vectors")
find_program(PYTHON3 python3 REQUIRED)
add_test(NAME metroplex_vectors_mutations COMMAND "${PYTHON3}" "${CMAKE_SOURCE_DIR}/tests/conformance/mutations_test.py"
  "$<TARGET_FILE:metroplex_vectors>" "${CMAKE_SOURCE_DIR}/tests/vectors")

# libFuzzer targets over the parsers.
if(METROPLEX_FUZZERS)
  file(GLOB fuzzers CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp")
  foreach(source IN LISTS fuzzers)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE metroplex_files metroplex_text metroplex_data)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
