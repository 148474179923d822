// What every command does with CLI11: parse, print --help, turn a wrong option into exit code 2.
#pragma once

#include <CLI/CLI.hpp>

#include <iostream>
#include <string>
#include <vector>

namespace metroplex::apps {

// Parses `arguments` into `app`. Returns false when the command should end at once with `exit_code` (help was
// printed, or an error named on stderr).
inline bool parse(CLI::App& app, std::vector<std::string> arguments, int& exit_code) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 consumes a vector from its end
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      exit_code = app.exit(error, std::cout, std::cerr);
    } else {
      std::cerr << "metroplex: [config] " << error.what() << "; see " << app.get_name() << " --help\n";
      exit_code = 2;
    }
    return false;
  }
  return true;
}

}  // namespace metroplex::apps
