#include <new>

#include "base/error.h"
#include "program.h"

namespace metroplex::apps {

int to_exit_code(const std::exception& error) {
  const auto* ours = dynamic_cast<const base::Error*>(&error);
  if (dynamic_cast<const std::bad_alloc*>(&error)) return kExitConfig;  // the same code as for a run that cannot fit
  if (!ours) return kExitInternal;
  const std::string& room = ours->room();
  if (room == "numerics") return kExitNumerics;
  if (room == "internal") return kExitInternal;
  if (room == "files" || room == "data" || room == "text" || room == "checkpoint" || room == "pickle")
    return kExitData;
  if (room == "comm") return kExitPeer;
  return kExitConfig;  // config, topology, plan, memory, ...: invalid request
}

}  // namespace metroplex::apps
