// The `metroplex` executable: commands that do not need libtorch.
#include "commands.h"
#include "program.h"

namespace metroplex::apps {

static std::string message_of(const std::exception& error, bool) { return error.what(); }

Program this_program() { return {commands(), message_of}; }

}  // namespace metroplex::apps
