// Shared code of the two executables. `metroplex` runs commands on integers and files, and starts in milliseconds.
// For commands with tensors it executes `metroplex-torch` from the same folder, which takes most of a second to load.
#pragma once

#include <exception>
#include <span>
#include <string>

#include "apps/command.h"

namespace metroplex::apps {

// Exit codes of every command; docs/cli.md has the table.
inline constexpr int kExitOk = 0, kExitInternal = 1, kExitConfig = 2, kExitData = 3, kExitPeer = 4, kExitNumerics = 5,
                     kExitUnsaved = 6, kExitStopped = 16;

int to_exit_code(const std::exception& error);

struct Program {
  std::span<const Command> commands;  // in the order of --help
  // Returns the message of an error: one line, or all details with `trace`.
  std::string (*message_of)(const std::exception& error, bool trace);
  // Reports the error to other ranks after the message is printed; may be null.
  void (*tell_others)(const std::exception& error) = nullptr;
};

// Each executable defines its own: ground_program.cpp, upper/torch_program.cpp. Both use the main() of main.cpp.
Program this_program();

}  // namespace metroplex::apps
