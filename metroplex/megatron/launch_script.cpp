#include "megatron/launch_script.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <unistd.h>

#include "base/error.h"
#include "megatron/launch_filters.h"
#include "megatron/launch_tools.h"
#include "megatron/launch_trial.h"
#include "megatron/trial.h"

namespace metroplex::megatron {
namespace {

constexpr size_t kMaxScriptBytes = size_t{1} << 20;

std::string read_text(const std::filesystem::path& path, size_t limit) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(limit + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

// The lines that start a .py program, with those that go on behind a backslash: "line 7 (torchrun pretrain_gpt.py)".
std::string starting_lines(const std::string& text) {
  std::istringstream stream(text);
  std::string found;
  int64_t number = 0, first = 0;
  std::string line, whole;
  while (std::getline(stream, line)) {
    ++number;
    if (whole.empty()) first = number;
    whole += line;
    if (!line.empty() && line.back() == '\\') continue;
    const size_t begin = whole.find_first_not_of(" \t");
    if (begin != std::string::npos && whole[begin] != '#' && whole.find(".py") != std::string::npos) {
      found += base::concat(found.empty() ? "" : ", ", first);
      if (number > first) found += base::concat(" to ", number);
    }
    whole.clear();
  }
  return found;
}

Trial run_bash(const std::string& script, const std::string& source, const std::vector<std::string>& arguments,
               const std::string& text, const std::string& copy) {
  std::vector<std::string> words{
      "bash", "--norc", "-c",  // behind ssh, and where the filter hides what stdin is, it would read ~/.bashrc
      base::concat(
          kLaunchTools, kLaunchFilters, kLaunchTrial,
          "shopt -s extdebug; trap '[[ ${FUNCNAME-} == metroplex_* ]] || metroplex_step \"$@\" && true' DEBUG; "
          ". \"$0\" \"$@\""),
      script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  try {
    return run_trial(source, words, copy);
  } catch (const base::Error& error) {
    const std::string lines = starting_lines(text);
    throw base::Error(error.room(),
                      std::string(error.what()).substr(error.room().size() + 3) +
                          "; give the training program's flags by hand, behind metroplex train" +
                          (lines.empty() ? "" : " (" + source + " starts a .py program in line " + lines + ")"));
  }
}

// What metroplex_record of launch_trial.h wrote.
std::vector<Command> read_record(const std::string& text) {
  struct Writer {
    std::vector<std::string> words;
    std::string begun;
  };
  std::map<std::string, Writer> writers;
  std::vector<Command> commands;
  std::istringstream stream(text);
  std::string process, ends, piece;
  while (std::getline(stream, process, '\0') && std::getline(stream, ends, '\0') &&
         std::getline(stream, piece, '\0')) {
    Writer& writer = writers[process];
    std::replace(piece.begin(), piece.end(), '\1', '\n');
    writer.begun += piece;
    if (ends != ".") continue;
    std::vector<std::string>& words = writer.words;
    words.push_back(std::move(writer.begun));
    writer.begun.clear();
    if (words.size() < 3 || words.size() < 2 + std::strtoul(words[0].c_str(), nullptr, 10)) continue;
    commands.push_back({words[1], {words.begin() + 2, words.end()}});
    words.clear();
  }
  return commands;
}

bool ends_with_py(const std::string& word) { return word.size() > 3 && word.compare(word.size() - 3, 3, ".py") == 0; }

// The number behind any of `names` among a launcher's words, written --name N or --name=N; 0 where there is none.
int64_t number_behind(const std::vector<std::string>& words, const std::vector<std::string>& names) {
  int64_t found = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const std::string value = name.size() < words[i].size() ? words[i].substr(name.size() + 1)
                              : i + 1 < words.size()        ? words[i + 1]
                                                            : "";
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc() && end == value.data() + value.size()) found = number;
  }
  return found;
}

int64_t ranks_of(const std::vector<std::string>& launcher) {
  const int64_t each = number_behind(launcher, {"--nproc-per-node"});
  if (each > 0) return each * std::max<int64_t>(1, number_behind(launcher, {"--nnodes"}));
  return number_behind(launcher, {"-np", "-n", "--np", "--ntasks"});
}

// $1, ${2:-x} but not $10 of awk's own program text in single quotes, which no reading tells apart: for a hint only.
int64_t arguments_named(const std::string& text) {
  int64_t highest = 0;
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (text[i] != '$') continue;
    const size_t at = i + (text[i + 1] == '{' ? 2 : 1);
    const bool alone = at + 1 >= text.size() || std::isdigit(static_cast<unsigned char>(text[at + 1])) == 0;
    if (text[at] >= '1' && text[at] <= '9' && alone) highest = std::max<int64_t>(highest, text[at] - '0');
  }
  return highest;
}

// "awk in line 12 of run.sh" for the mark that stands in `text`.
std::string program_of_mark(const std::string& text, const std::string& path) {
  std::istringstream stream(text.substr(text.find(kMark) + std::string(kMark).size()));
  std::string tool, line, file;
  std::getline(stream, tool, '@');
  std::getline(stream, line, '@');
  std::getline(stream, file, '@');
  if (file == std::to_string(kScriptFd)) file = std::filesystem::path(path).filename().string();
  return base::concat(tool, line.empty() ? "" : " in line " + line, file.empty() ? "" : " of " + file);
}

bool has_mark(const std::string& text) { return text.find(kMark) != std::string::npos; }

void add_once(std::string& list, const std::string& item) {
  if (list.find(item) == std::string::npos) list += (list.empty() ? "" : ", ") + item;
}

constexpr const char* kByHand =
    "; a trial starts no program, so give that by hand: write it into the script, in the place of the command";

void check_flags_are_known(const LaunchScript& script, const std::string& path) {
  std::string flag = "an argument", unknown;
  for (const std::string& word : script.flags) {
    if (word.rfind("--", 0) == 0) flag = word.substr(0, word.find('='));
    if (has_mark(flag)) flag = "a flag";
    if (has_mark(word)) add_once(unknown, base::concat(flag, " (", program_of_mark(word, path), ")"));
  }
  MPX_CHECK(unknown.empty(), "config", path, ": depends on what a program prints: ", unknown, kByHand);
}

// The programs of marks that go with a "!" before `end`, and of those in bash's own complaints ("run.sh: line 3: cd:
// ..."): what they would have said decided what came next.
void check_course_is_known(const std::vector<Command>& commands, size_t end, const std::string& printed,
                           const std::string& path) {
  std::string unknown;
  for (size_t i = 0; i < end; ++i) {
    const std::vector<std::string>& words = commands[i].words;
    if (words.size() == 2 && words[0].rfind(kMark, 0) == 0 && words[1] == "!")
      add_once(unknown, program_of_mark(words[0], path));
  }
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    if (has_mark(line) && line.find(": line ") < line.find(kMark)) add_once(unknown, program_of_mark(line, path));
  }
  MPX_CHECK(unknown.empty(), "config", path, ": what it does depends on what a program prints or decides: ", unknown,
            kByHand);
}

std::string programs_of_marks(const std::vector<Command>& commands, const std::string& path) {
  std::string found;
  for (const Command& command : commands) {
    if (command.words[0].rfind(kMark, 0) == 0) add_once(found, program_of_mark(command.words[0], path));
  }
  return found.empty() ? "" : base::concat("; it reads what programs print that a trial does not start: ", found);
}

std::string last_lines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int lines = 0; lines < 5 && begin != std::string::npos && begin > 0; ++lines)
    begin = text.rfind('\n', begin - 1);
  return text.substr(begin == std::string::npos ? 0 : begin + (begin > 0 ? 1 : 0));
}

// `at`: where among the commands it stands.
LaunchScript training_command(const std::vector<Command>& commands, size_t& at) {
  LaunchScript out;
  std::vector<std::string> alone;
  at = commands.size();
  for (const Command& command : commands) {
    const auto program = std::find_if(command.words.begin(), command.words.end(), ends_with_py);
    if (program == command.words.end()) {
      if (command.words[0].rfind("--", 0) == 0) alone.insert(alone.end(), command.words.begin(), command.words.end());
      continue;
    }
    if (!out.program.empty() && command.words.end() - program - 1 <= static_cast<std::ptrdiff_t>(out.flags.size()))
      continue;
    out.program = *program;
    out.flags.assign(program + 1, command.words.end());
    out.ranks = ranks_of({command.words.begin(), program});
    out.folder = command.folder;
    at = static_cast<size_t>(&command - commands.data());
  }
  if (out.flags.empty()) out.flags = std::move(alone);
  return out;
}

}  // namespace

LaunchScript read_launch_script(const std::string& path, const std::vector<std::string>& arguments) {
  std::error_code code;
  MPX_CHECK(std::filesystem::exists(path, code) && !std::filesystem::is_directory(path, code) &&
                access(path.c_str(), R_OK) == 0,
            "config", "cannot read the Megatron arguments ", path, "; check the path");
  std::string text = read_text(path, kMaxScriptBytes);
  MPX_CHECK(text.size() <= kMaxScriptBytes && text.find('\0') == std::string::npos, "config", path,
            " is no launch script: ", text.size() > kMaxScriptBytes ? "more than a megabyte" : "it holds zero bytes");
  std::string script = path.find('/') == std::string::npos ? "./" + path : path, copy;
  if (text.find('\r') != std::string::npos || !std::filesystem::is_regular_file(path, code)) {
    text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
    copy = text + "\n";
    script = base::concat("/proc/self/fd/", kScriptFd);
  }
  Trial trial = run_bash(script, path, arguments, text, copy);
  std::vector<Command> commands = read_record(trial.record);
  std::move(trial.refused.begin(), trial.refused.end(), std::back_inserter(commands));
  size_t at = 0;
  LaunchScript out = training_command(commands, at);
  out.arguments_named = arguments_named(text);
  check_course_is_known(commands, at, trial.printed, path);
  check_flags_are_known(out, path);
  const std::string said = last_lines(trial.printed);
  const bool broken =
      said.find("unexpected EOF") != std::string::npos || said.find("syntax error") != std::string::npos;
  MPX_CHECK(!out.flags.empty(), "config", path, ": starts no training (bash ends with ", trial.status,
            broken ? ": a quote or bracket is never closed?" : "",
            "); expected a command such as torchrun ... pretrain_gpt.py --num-layers 12 ...",
            programs_of_marks(commands, path), said.empty() ? "" : "; the script said:\n" + said);
  return out;
}

}  // namespace metroplex::megatron
