#include "upper/checkpoint_config.h"

#include "base/error.h"
#include "checkpoint/foreign.h"
#include "checkpoint/load.h"
#include "files/file_system.h"

namespace metroplex::apps {

std::string config_of_checkpoint(const std::string& path, int64_t step) {
  files::PosixFileSystem disk;
  const std::string foreign = checkpoint::foreign_format(disk, path);
  MPX_CHECK(foreign.empty(), "checkpoint", "'", path, "' holds a checkpoint in ", foreign,
            "; metroplex reads its own only (docs/checkpoint_format.md)");
  checkpoint::Alone alone;
  const checkpoint::Found found = checkpoint::open_path(disk, path, step, alone);
  MPX_CHECK(found.reader != nullptr, "checkpoint", "there is no checkpoint in ", path);
  return found.reader->manifest().config_yaml;
}

}  // namespace metroplex::apps
