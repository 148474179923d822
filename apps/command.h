// Each command has one file, apps/<name>.cpp or, with tensors, apps/upper/<name>.cpp. It defines run_<name>.
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

// Takes the arguments after the program and command names. Returns the process's exit code; throws base::Error.
using RunCommand = int (*)(const std::vector<std::string>& arguments);
inline constexpr RunCommand kNeedsTorch = nullptr;

struct Command {
  const char* name;
  const char* summary;
  RunCommand run;
};

// CLI11 checks for numbers. CLI11's own checks print the largest double in their messages.

inline std::string no_number(const std::string& text) {
  return std::isnan(std::atof(text.c_str())) ? "'" + text + "' is not a number" : "";
}
inline std::string not_above_0(const std::string& text) {
  if (const std::string wrong = no_number(text); !wrong.empty()) return wrong;
  return std::atof(text.c_str()) > 0 ? "" : "'" + text + "' is not above 0";
}
inline std::string no_file(const std::string& text) {
  return text.empty() ? "'' is not a file name; is a variable not set?" : "";
}
inline std::string below_0(const std::string& text) {
  if (const std::string wrong = no_number(text); !wrong.empty()) return wrong;
  return std::atof(text.c_str()) >= 0 ? "" : "'" + text + "' is below 0";
}

inline std::string no_time(const std::string& text) {
  if (const std::string wrong = below_0(text); !wrong.empty()) return wrong;
  return std::atof(text.c_str()) <= 1e12 ? "" : "'" + text + "' is above 1e12, the largest time";
}

// Command line parsing with CLI11: --help, and exit code 2 for an invalid option.

// Replaces --world_size by --world-size if `app` has only the dashed option.
inline std::string with_dashes(CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const bool other = name.rfind("--", 0) == 0 && app.get_option_no_throw(name) == nullptr &&
                     app.get_option_no_throw(dashed) != nullptr;
  return other ? dashed + argument.substr(name.size()) : argument;
}

// Parses `arguments` into `app`. Returns false if the command must end with `exit_code`, after printing help or an
// error.
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

struct Terminal {
  bool there = false;   // stdout is a terminal
  bool colour = false;  // stdout is a terminal, and NO_COLOR is not set
  int columns = 0;      // COLUMNS, or the terminal's width; 0: unknown
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
