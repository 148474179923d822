// libFuzzer entry: any bytes as the members of a checkpoint's manifest. The checksum is corrected so that the parser
// runs; accepted input must be written and read back.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "files/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace metroplex;
  const std::string_view members(reinterpret_cast<const char*>(data), size);
  try {
    const files::Manifest manifest = files::parse_manifest(files::seal_manifest(members), "fuzz");
    const std::string text = files::write_manifest(manifest);
    if (files::write_manifest(files::parse_manifest(text, "again")) != text) std::abort();
  } catch (const base::Error&) {}
  return 0;
}
