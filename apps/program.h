// What the two executables share. `metroplex` answers what integers and files can answer, and starts in milliseconds;
// for everything with tensors it becomes `metroplex-torch`, which lies beside it and takes most of a second to load.
#pragma once

#include <exception>
#include <span>
#include <string>

#include "apps/command.h"

namespace metroplex::apps {

// Exit codes of every command; docs/cli.md has the table.
inline constexpr int kExitOk = 0, kExitInternal = 1, kExitConfig = 2, kExitData = 3, kExitPeer = 4, kExitNumerics = 5,
                     kExitUnsaved = 6, kExitStopped = 16;

// The exit code that stands for an error, by the room that found it.
int exit_code_of(const std::exception& error);

struct Program {
  std::span<const Command> commands;  // in the order of --help
  // What is said of an error: one line, or with `trace` all that is known of where it comes from.
  std::string (*message_of)(const std::exception& error, bool trace);
  // Once that is said: who else has to hear of it. May be null.
  void (*tell_others)(const std::exception& error) = nullptr;
};

// Each executable has its own: ground_program.cpp, upper/torch_program.cpp. Both have the main() of main.cpp.
Program this_program();

}  // namespace metroplex::apps
