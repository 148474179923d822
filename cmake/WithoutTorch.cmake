# Modules without torch and CUDA: integers, files and text. They build in seconds and run under the sanitizers and
# libFuzzer.
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)

# Adds the text of files to a module's library as constants (EmbedFiles.cmake).
function(metroplex_embed module pattern)
  file(GLOB files CONFIGURE_DEPENDS "${pattern}")
  set(output "${CMAKE_BINARY_DIR}/${module}_files.cpp")
  add_custom_command(OUTPUT "${output}" DEPENDS ${files} "${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake"
    COMMAND "${CMAKE_COMMAND}" -DOUTPUT=${output} -DNAMESPACE=metroplex::${module} "-DFILES=${files}"
    -P "${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake" VERBATIM)
  target_sources(metroplex_${module} PRIVATE "${output}")
endfunction()

metroplex_module(core/base)
metroplex_module(core/config WIRING LINKS metroplex_base yaml-cpp nlohmann_json::nlohmann_json)
metroplex_module(formats/megatron WIRING LINKS metroplex_base metroplex_config PkgConfig::SECCOMP)
# Megatron's complete rules, as the reference for ours.
file(GLOB oracle_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/megatron/oracle/*.cpp")
add_library(megatron_oracle STATIC ${oracle_sources})
target_include_directories(megatron_oracle PRIVATE "${CMAKE_SOURCE_DIR}/tests")
target_compile_options(megatron_oracle PRIVATE ${METROPLEX_QUICK})
target_link_libraries(megatron_oracle PUBLIC metroplex_megatron)
target_link_libraries(megatron_test PRIVATE megatron_oracle)
metroplex_module(core/files LINKS metroplex_base nlohmann_json::nlohmann_json PkgConfig::XXHASH TESTS metroplex_draw)
metroplex_module(formats/text LINKS metroplex_base metroplex_files nlohmann_json::nlohmann_json PkgConfig::PCRE2
  PkgConfig::SENTENCEPIECE PkgConfig::UTF8PROC)
metroplex_module(core/topology LINKS metroplex_base metroplex_config nlohmann_json::nlohmann_json)
metroplex_module(core/plan LINKS metroplex_base metroplex_config nlohmann_json::nlohmann_json TESTS metroplex_draw)
metroplex_module(lab/price LINKS metroplex_base yaml-cpp)
metroplex_embed(price "${CMAKE_SOURCE_DIR}/metroplex/lab/price/machines/*.yaml")
metroplex_module(lab/replay LINKS metroplex_plan metroplex_price)
metroplex_module(lab/draw LINKS metroplex_files metroplex_topology metroplex_replay nlohmann_json::nlohmann_json)
metroplex_module(lab/page LINKS metroplex_draw nlohmann_json::nlohmann_json)
metroplex_embed(page "${CMAKE_SOURCE_DIR}/metroplex/lab/page/files/*")
metroplex_module(core/checkpoint LINKS metroplex_base metroplex_files nlohmann_json::nlohmann_json)
metroplex_module(formats/hf LINKS metroplex_base metroplex_config metroplex_files metroplex_checkpoint nlohmann_json::nlohmann_json)
metroplex_module(core/data LINKS metroplex_base metroplex_config metroplex_files)

# The `metroplex` binary without tensors; cmake/Apps.cmake has the part with tensors.
file(GLOB app_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/apps/*.cpp")
list(FILTER app_sources EXCLUDE REGEX "/(main|ground_program)\\.cpp$")
add_library(metroplex_apps STATIC ${app_sources})
target_include_directories(metroplex_apps PUBLIC "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/apps")
target_compile_definitions(metroplex_apps PRIVATE FMT_HEADER_ONLY)  # keeps fmt 9 apart from libtorch's fmt 12
target_compile_options(metroplex_apps PRIVATE ${METROPLEX_QUICK})
target_link_libraries(metroplex_apps PUBLIC metroplex_megatron metroplex_text metroplex_page metroplex_data metroplex_checkpoint metroplex_hf CLI11::CLI11)
file(GLOB app_cpp_tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/apps/*_test.cpp")
metroplex_test(apps_test "" metroplex_apps ${app_cpp_tests})
add_library(metroplex_main OBJECT apps/main.cpp)
target_compile_definitions(metroplex_main PRIVATE METROPLEX_VERSION="${PROJECT_VERSION}")
target_link_libraries(metroplex_main PUBLIC metroplex_apps)
add_executable(metroplex apps/ground_program.cpp)
target_link_libraries(metroplex PRIVATE metroplex_main)
install(TARGETS metroplex)

# The model for bench/*-echo.md, and its tests. The program is built only by name, as those of cmake/Apps.cmake.
file(GLOB echo_model_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/echo_model/*.cpp")
add_library(metroplex_echo_model STATIC ${echo_model_sources})
target_include_directories(metroplex_echo_model PUBLIC "${CMAKE_SOURCE_DIR}/bench")
target_link_libraries(metroplex_echo_model PUBLIC metroplex_files metroplex_plan metroplex_price)
file(GLOB bench_tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/bench/*_test.cpp")
metroplex_test(bench_test "" metroplex_echo_model ${bench_tests})
file(GLOB echo_bench_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/echo/*.cpp")
add_executable(echo_bench EXCLUDE_FROM_ALL ${echo_bench_sources})
target_link_libraries(echo_bench PRIVATE metroplex_echo_model CLI11::CLI11)

# metroplex_vectors replays tests/vectors; its tensor runners require torch.
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
    target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
    target_link_libraries(${name} PRIVATE metroplex_files metroplex_text metroplex_config metroplex_hf)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
