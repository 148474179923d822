# Writes machines/*.yaml of lab/price into a source file: price/embedded.h declares its function.
file(GLOB machine_files CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/metroplex/lab/price/machines/*.yaml")
set(entries "")
foreach(file IN LISTS machine_files)
  get_filename_component(name "${file}" NAME_WE)
  file(READ "${file}" text)
  string(APPEND entries "    {\"${name}\", R\"yaml(${text})yaml\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
endforeach()
file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/embedded_machines.cpp" CONTENT
"#include \"price/embedded.h\"
namespace metroplex::price {
std::span<const EmbeddedFile> embedded_machines() {
  static constexpr EmbeddedFile files[] = {
${entries}  };
  return files;
}
}
")
target_sources(metroplex_price PRIVATE "${CMAKE_BINARY_DIR}/embedded_machines.cpp")
