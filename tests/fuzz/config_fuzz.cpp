// libFuzzer entry: any bytes as the YAML of a run. Accepted input is dumped, read back equal, and validated; valid
// input is resolved, and resolving it again changes nothing.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace metroplex;
  const std::string yaml(reinterpret_cast<const char*>(data), size);
  try {
    const config::Config config = config::parse(yaml);
    const std::string text = config::dump(config);
    if (!config::differences(config, config::parse(text)).empty()) std::abort();
    if (!config::differences(config, config::parse_saved(text)).empty()) std::abort();
    for (const int64_t ranks : {1, 8}) {
      if (!config::violations(config, ranks).empty()) continue;
      const config::Config resolved = config::resolved(config, ranks);
      if (!config::differences(resolved, config::resolved(resolved, ranks)).empty()) std::abort();
    }
  } catch (const base::Error&) {}
  try {
    config::parse_saved(yaml);
  } catch (const base::Error&) {}
  return 0;
}
