// One file a command: apps/<name>.cpp, or apps/upper/<name>.cpp where it needs tensors, defines run_<name>.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

namespace metroplex::apps {

// Arguments without the program and command names. Returns the process's exit code; throws base::Error.
using RunCommand = int (*)(const std::vector<std::string>& arguments);
inline constexpr RunCommand kNeedsTorch = nullptr;

struct Command {
  const char* name;
  const char* summary;
  RunCommand run;
};

// Checks of numbers for CLI11, whose own name the largest double.

inline std::string no_number(const std::string& text) {
  return std::isnan(std::atof(text.c_str())) ? "'" + text + "' is not a number" : "";
}
inline std::string not_above_0(const std::string& text) {
  if (const std::string wrong = no_number(text); !wrong.empty()) return wrong;
  return std::atof(text.c_str()) > 0 ? "" : "'" + text + "' is not above 0";
}
inline std::string no_file(const std::string& text) {
  return text.empty() ? "'' names no file; is a variable not set?" : "";
}
inline std::string below_0(const std::string& text) {
  if (const std::string wrong = no_number(text); !wrong.empty()) return wrong;
  return std::atof(text.c_str()) >= 0 ? "" : "'" + text + "' is below 0";
}

// What every command does with CLI11: parse, print --help, turn a wrong option into exit code 2.

// Replaces --world_size by --world-size, for an option that `app` has in this form only.
inline std::string with_dashes(CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const bool other = name.rfind("--", 0) == 0 && app.get_option_no_throw(name) == nullptr &&
                     app.get_option_no_throw(dashed) != nullptr;
  return other ? dashed + argument.substr(name.size()) : argument;
}

// Parses `arguments` into `app`. Returns false when the command should end at once with `exit_code` (help was
// printed, or an error named on stderr).
inline bool parse(CLI::App& app, std::vector<std::string> arguments, int& exit_code) {
  for (std::string& argument : arguments) argument = with_dashes(app, argument);
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

// The terminal that a command draws on, if there is one, and what its user's environment says of it.

struct Terminal {
  bool there = false;   // stdout is one
  bool colour = false;  // it is, and NO_COLOR is not set
  int columns = 0;      // COLUMNS, or what the terminal says of itself; 0: nobody says
};

inline Terminal terminal_of_stdout() {
  Terminal terminal;
  terminal.there = isatty(STDOUT_FILENO) != 0;
  terminal.colour = terminal.there && std::getenv("NO_COLOR") == nullptr;
  if (const char* variable = std::getenv("COLUMNS")) terminal.columns = std::atoi(variable);
  winsize size{};
  if (terminal.columns <= 0) terminal.columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  return terminal;
}

}  // namespace metroplex::apps
