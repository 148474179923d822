#include "megatron/launch_script.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "megatron/launch_trial.h"

extern char** environ;

namespace metroplex::megatron {
namespace {

constexpr size_t kMaxScriptBytes = size_t{1} << 20;
constexpr auto kPatience = std::chrono::seconds(20);

struct Command {
  std::string folder;
  std::vector<std::string> words;
};

std::string read_text(const std::filesystem::path& path, size_t limit) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(limit + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "metroplex_trial.XXXXXX").string();
    MPX_CHECK(mkdtemp(name.data()) != nullptr, "config", "cannot make a folder ", name, " (", std::strerror(errno),
              "); TMPDIR names another place");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Waits for the whole of a process group's first process; ends the group when it takes too long.
int wait_for(pid_t child, const std::string& source) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int status = 0;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (std::chrono::steady_clock::now() < deadline) continue;
    ::kill(-child, SIGKILL);
    waitpid(child, &status, 0);
    base::throw_error("config", base::concat(source, ": its trial run did not end within ", kPatience.count(),
                                             " s; does it wait or loop? Write the training command into a file"));
  }
}

int run_bash(const std::string& script, const std::string& source, const std::vector<std::string>& arguments,
             const ScratchFolder& scratch) {
  const std::string trial = (scratch / "trial").string(), printed = (scratch / "printed").string();
  std::ofstream(trial) << kLaunchTrial;
  std::ofstream(scratch / "record").flush();
  std::vector<std::string> words{"bash", "-c",
                                 ". \"$METROPLEX_TRIAL\"; shopt -s extdebug; "
                                 "trap 'metroplex_step \"$@\" && true' DEBUG; . \"$0\" \"$@\"",
                                 script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables{"METROPLEX_TRIAL=" + trial, "METROPLEX_RECORD=" + (scratch / "record").string()};
  std::vector<char*> argv, environment;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) environment.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "BASH_ENV=", 9) != 0) environment.push_back(*variable);
  }
  argv.push_back(nullptr);
  environment.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, printed.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = posix_spawnp(&child, "bash", &files, &attributes, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  MPX_CHECK(error == 0, "config", source, ": bash, which reads it, cannot be started (", std::strerror(error), ")");
  return wait_for(child, source);
}

// The records of launch_trial.h.
std::vector<Command> read_record(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::vector<std::string> words;
  for (size_t at = 0, end = 0; (end = text.find('\0', at)) != std::string::npos; at = end + 1)
    words.push_back(text.substr(at, end - at));
  std::vector<Command> commands;
  for (size_t at = 0; at + 1 < words.size();) {
    const size_t count = std::strtoul(words[at].c_str(), nullptr, 10);
    if (count == 0 || count > words.size() - at - 2) break;  // two programs wrote at once
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(at) + 2;
    commands.push_back({words[at + 1], {first, first + static_cast<std::ptrdiff_t>(count)}});
    at += 2 + count;
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

std::string last_lines(const std::filesystem::path& printed, const std::string& trial) {
  std::string text = read_text(printed, kMaxScriptBytes);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int lines = 0; lines < 5 && begin != std::string::npos && begin > 0; ++lines)
    begin = text.rfind('\n', begin - 1);
  text = text.substr(begin == std::string::npos ? 0 : begin + (begin > 0 ? 1 : 0));
  for (size_t at = 0; (at = text.find(trial)) != std::string::npos;) text.erase(at, trial.size());
  return text;
}

LaunchScript training_command(std::vector<Command> commands) {
  LaunchScript out;
  std::vector<std::string> alone;
  for (Command& command : commands) {
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
  const ScratchFolder scratch;
  std::string script = path.find('/') == std::string::npos ? "./" + path : path;
  if (text.find('\r') != std::string::npos || !std::filesystem::is_regular_file(path, code)) {
    text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
    script = (scratch / "script").string();
    std::ofstream(script, std::ios::binary) << text;
  }
  const int status = run_bash(script, path, arguments, scratch);
  LaunchScript out = training_command(read_record(scratch / "record"));
  out.arguments_named = arguments_named(text);
  const std::string said = last_lines(scratch / "printed", (scratch / "").string());
  const bool broken =
      said.find("unexpected EOF") != std::string::npos || said.find("syntax error") != std::string::npos;
  MPX_CHECK(!out.flags.empty(), "config", path, ": starts no training (bash ends with ", status,
            broken ? ": a quote or bracket is never closed?" : "",
            "); expected a command such as torchrun ... pretrain_gpt.py --num-layers 12 ...",
            said.empty() ? "" : "; the script said:\n" + said);
  return out;
}

}  // namespace metroplex::megatron
