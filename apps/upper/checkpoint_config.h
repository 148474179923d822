// What a checkpoint was made with, for the commands that read one: generate and eval.
#pragma once

#include <cstdint>
#include <string>

namespace metroplex::apps {

// The YAML that the checkpoint holds, of iteration `step` or of the newest (0); `path` is one or a folder of them.
// Throws base::Error("checkpoint") when there is none, or one of another program.
std::string config_of_checkpoint(const std::string& path, int64_t step);

}  // namespace metroplex::apps
