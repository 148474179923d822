#include "megatron/launch_script.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include <unistd.h>

#include "base/error.h"
#include "megatron/flags.h"
#include "megatron/launch_branches.h"
#include "megatron/launch_files.h"
#include "megatron/launch_filters.h"
#include "megatron/launch_program.h"
#include "megatron/launch_ranks.h"
#include "megatron/launch_tools.h"
#include "megatron/launch_trial.h"
#include "megatron/launch_variables.h"
#include "megatron/trial.h"

namespace metroplex::megatron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxScriptBytes = size_t{1} << 20;
constexpr std::chrono::milliseconds kLateTrial = std::chrono::seconds(1);  // limit of one that starts too late

std::string read_text(const std::filesystem::path& path, size_t limit) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(limit + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

// Returns the lines that start a .py program, with backslash continuations joined: "line 7 (torchrun
// pretrain_gpt.py)".
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

struct Source {
  std::string path, text, copy, script;
  std::vector<std::string> arguments;
  std::vector<std::string> slurm_options;
  unsigned seed = 0;             // of $RANDOM
  bool assumes_folders = false;  // cd succeeds in folders that do not exist
  Clock::time_point deadline{};  // of all trials together
};

// Trials assume different output of unknown programs (metroplex_trial in launch_trial.h). They also take different
// branches of one decision on such output (metroplex_only in launch_branches.h).
constexpr int kTrials = 3, kMaxBranches = 24;

struct Assumption {
  int number = 0;
  std::string branch;  // a key of trial 0
};

// Whether a script with #SBATCH lines is read as the job; one that submits itself is not.
bool is_job(const Source& source) {
  return !source.slurm_options.empty() && source.text.find("SLURM_") != std::string::npos &&
         source.text.find("sbatch ") == std::string::npos;
}

std::string quote_for_bash(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The first statement loads the libraries for user names; afterwards no code can be loaded (trial.cpp).
Trial run_bash(const Source& source, const Assumption& assumed, std::chrono::milliseconds patience) {
  std::vector<std::string> words{
      "bash", "--norc", "-c",  // without it bash reads ~/.bashrc after ssh, and if the filter hides the type of stdin
      base::concat(
          ": ~root > /dev/null\nRANDOM=", source.seed, " metroplex_trial=", assumed.number,
          " metroplex_only=", quote_for_bash(assumed.branch), " metroplex_folders=", source.assumes_folders ? 1 : 0,
          "\n", slurm_variables(source.slurm_options), kLaunchTools, kLaunchFilters, kLaunchFiles, kLaunchBranches,
          kLaunchTrial, kLaunchVariables, is_job(source) ? "metroplex_job\n" : "",
          "shopt -s extdebug; trap '[[ ${FUNCNAME-} == metroplex_* ]] || metroplex_step \"$@\" && true' DEBUG; "
          ". \"$0\" \"$@\""),
      source.script};
  words.insert(words.end(), source.arguments.begin(), source.arguments.end());
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(source.deadline - Clock::now());
  try {
    return run_trial(source.path, words, source.copy, std::min(patience, std::max(left, kLateTrial)));
  } catch (const base::Error& error) {
    const std::string lines = starting_lines(source.text);
    throw base::Error(error.room(),
                      std::string(error.what()).substr(error.room().size() + 3) +
                          "; pass the flags of the training program directly, after metroplex train" +
                          (lines.empty() ? "" : " (" + source.path + " starts a .py program in line " + lines + ")"));
  }
}

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

// Returns the highest of $1, ${2:-x} and so on; $10 is not counted. Also counts awk code in single quotes, so the
// result is only a hint.
int64_t find_arguments(const std::string& text) {
  int64_t highest = 0;
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (text[i] != '$') continue;
    const size_t at = i + (text[i + 1] == '{' ? 2 : 1);
    const bool alone = at + 1 >= text.size() || std::isdigit(static_cast<unsigned char>(text[at + 1])) == 0;
    if (text[at] >= '1' && text[at] <= '9' && alone) highest = std::max<int64_t>(highest, text[at] - '0');
  }
  return highest;
}

// Returns "awk in line 12 of run.sh" for the mark in `text`.
std::string marked_program(const std::string& text, const std::string& path) {
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

constexpr const char* kManualHint =
    "; a trial starts no programs, so write the value into the script by hand, in place of the command";

// Whether weights, data and losses are independent of a flag at all its values.
bool is_harmless(std::string flag) {
  std::replace(flag.begin(), flag.end(), '_', '-');
  const HarmlessFlag* const known = find_harmless(flag);
  return known != nullptr && known->only.empty();
}

// Returns the maximum number of words of a translated flag; any number for other flags.
int64_t max_values(const std::string& flag) {
  for (const FlagRow& row : flag_table()) {
    if (flag != row.flag) continue;
    return row.take == ArgumentCount::kNone    ? 0
           : row.take == ArgumentCount::kOne   ? 1
           : row.take == ArgumentCount::kThree ? 3
                                               : INT64_MAX;
  }
  return INT64_MAX;
}

void check_flags_are_known(const LaunchScript& script, const std::string& path) {
  const bool parallel = std::find(script.flags.begin(), script.flags.end(), ":::") != script.flags.end();
  MPX_CHECK(
      !parallel, "config", path,
      ": GNU parallel starts one training run for each word after :::, but only one can be read; write the command "
      "of that run into the script");
  std::string flag = "an argument", unknown;
  int64_t values = 0;
  for (const std::string& word : script.flags) {
    const bool is_flag = word.rfind("--", 0) == 0;
    if (is_flag) flag = word.substr(0, word.find('=')), values = word.find('=') == std::string::npos ? 0 : 1;
    if (!is_flag && ++values > max_values(flag)) flag = "an argument";
    if (has_mark(flag)) flag = "a flag";
    if (has_mark(word) && !is_harmless(flag))
      add_once(unknown, base::concat(flag, " (", marked_program(word, path), ")"));
  }
  MPX_CHECK(unknown.empty(), "config", path, ": depends on the output of a program: ", unknown, kManualHint);
}

// Finds programs whose output decided the next commands: marks with a "!" before `end`, and marks in bash's own
// errors ("run.sh: line 3: cd: ...").
void check_branches_known(const std::vector<Command>& commands, size_t end, const std::string& printed,
                          const std::string& path) {
  std::string unknown;
  for (size_t i = 0; i < end; ++i) {
    const std::vector<std::string>& words = commands[i].words;
    if (words.size() == 2 && words[0].rfind(kMark, 0) == 0 && words[1] == "!")
      add_once(unknown, marked_program(words[0], path));
  }
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    const bool condition = line.find(": [[: ") != std::string::npos;  // launch_branches.h tries both branches
    if (has_mark(line) && !condition && line.find(": line ") < line.find(kMark))
      add_once(unknown, marked_program(line, path));
  }
  MPX_CHECK(unknown.empty(), "config", path, ": its behavior depends on the output or status of a program: ", unknown,
            kManualHint);
}

// The programs in whose place a mark stands: their output may hold the training command.
std::string marked_programs(const std::vector<Command>& commands, const std::string& path) {
  std::string found;
  for (const Command& command : commands) {
    const std::vector<std::string>& words = command.words;
    const bool swift = words[0] == "megatron" && words.size() > 1 && words[1].rfind("-", 0) != 0;
    if (swift) return base::concat("; megatron ", words[1], " is a command of ms-swift, which is not supported");
    if (words.size() == 1 && words[0].rfind(kMark, 0) == 0) add_once(found, marked_program(words[0], path));
  }
  return found.empty()
             ? ""
             : base::concat(
                   "; a trial does not start these programs and does not read the commands that they start: ", found);
}

// Without lines of marks, which print_mark and metroplex_unknown wrote.
std::string last_lines(const std::string& printed) {
  std::istringstream lines(printed);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (!has_mark(line)) text += line + '\n';
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int lines = 0; lines < 5 && begin != std::string::npos && begin > 0; ++lines)
    begin = text.rfind('\n', begin - 1);
  return text.substr(begin == std::string::npos ? 0 : begin + (begin > 0 ? 1 : 0));
}

// Returns a message about `NAME=<Specify path>` with its line; empty if the text has none.
std::string find_placeholder(const std::string& text) {
  static const std::regex kPlaceholder("^\\s*(export\\s+)?\\w+=(<[^<>]+>)");
  std::istringstream stream(text);
  int64_t number = 0;
  std::smatch found;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.size() < 4096 && std::regex_search(line, found, kPlaceholder))
      return base::concat("the placeholder ", found[2].str(), " in line ", number, " needs a value");
  }
  return "";
}

// Guesses the cause of a syntax error from the message of bash.
std::string syntax_error_cause(const std::string& said, const std::string& text) {
  const auto has = [&](const char* part) { return said.find(part) != std::string::npos; };
  if (has("operand expected")) return ": check for an empty variable in an arithmetic expression";
  if (!has("unexpected EOF") && !has("syntax error")) return "";
  const std::string placeholder = find_placeholder(text);
  return placeholder.empty() ? ": check for an unclosed quote or bracket" : ": " + placeholder;
}

// One trial and the training command that it found.
struct Reading {
  Assumption assumed;
  Trial trial;
  std::vector<Command> commands;
  size_t at = 0;  // index of that command
  std::vector<std::string> launcher;
  LaunchScript script;
};

// The flags end at the ":" that begins the next program of mpiexec.
std::vector<std::string> program_flags(const Command& command, const Program& program) {
  const auto begin = command.words.begin() + static_cast<std::ptrdiff_t>(program.at) + 1;
  return {begin, std::find(begin, command.words.end(), ":")};
}

void find_training_command(Reading& reading) {
  LaunchScript& out = reading.script;
  std::vector<std::string> alone;
  reading.at = reading.commands.size();
  int rank = -1;
  for (const Command& command : reading.commands) {
    const std::optional<Program> program = find_program(command.words);
    if (!program) {
      if (command.words[0].rfind("--", 0) == 0) alone.insert(alone.end(), command.words.begin(), command.words.end());
      continue;
    }
    const int other = program_rank(program->name);
    const std::vector<std::string> flags = program_flags(command, *program);
    if (other < rank || (other == rank && flags.size() <= out.flags.size())) continue;
    rank = other;
    out.program = program->name;
    out.flags = flags;
    out.folder = command.folder;
    reading.launcher.assign(command.words.begin(), command.words.begin() + static_cast<std::ptrdiff_t>(program->at));
    reading.at = static_cast<size_t>(&command - reading.commands.data());
  }
  if (out.flags.empty()) out.flags = std::move(alone);
}

std::string other_programs_note(const Reading& reading) {
  std::map<std::string, int64_t> others;
  for (const Command& command : reading.commands) {
    const std::optional<Program> program = find_program(command.words);
    if (!program) continue;
    if (program->name != reading.script.program || program_flags(command, *program) != reading.script.flags)
      ++others[program->name];
  }
  std::string list;
  for (const auto& [program, count] : others)
    list += base::concat(list.empty() ? "" : ", ", program, count > 1 ? base::concat(" (", count, " commands)") : "");
  return list.empty() ? ""
                      : base::concat("the command of ", reading.script.program, " with ", reading.script.flags.size(),
                                     " words is read; these other commands are not read: ", list);
}

bool starts_several_programs(const Reading& reading) {
  if (reading.at >= reading.commands.size()) return false;
  const std::vector<std::string>& words = reading.commands[reading.at].words;
  return std::find(words.begin(), words.end(), ":") != words.end();
}

void read_ranks(Reading& reading, const Source& source) {
  const LauncherRanks ranks = count_ranks(reading.launcher, source.slurm_options);
  reading.script.ranks = ranks.count;
  reading.script.unknown_ranks = ranks.unknown;
  if (starts_several_programs(reading)) {
    reading.script.ranks = 0;
    reading.script.unknown_ranks = "a launcher with several programs separated by :";
  }
  const size_t mark = ranks.unknown.find(kMark);
  if (mark != std::string::npos)
    reading.script.unknown_ranks =
        ranks.unknown.substr(0, mark) + "(output of " + marked_program(ranks.unknown, source.path) + ")";
}

Reading read_once(const Source& source, const Assumption& assumed, std::chrono::milliseconds patience) {
  Reading reading;
  reading.assumed = assumed;
  reading.trial = run_bash(source, assumed, patience);
  reading.commands = read_record(reading.trial.record);
  std::move(reading.trial.refused.begin(), reading.trial.refused.end(), std::back_inserter(reading.commands));
  find_training_command(reading);
  reading.script.arguments_named = find_arguments(source.text);
  read_ranks(reading, source);
  return reading;
}

// SLURM_JOB_ID in the three trials (metroplex_job of launch_variables.h).
constexpr const char* kJobIds[] = {"1000001", "1000002", "1000003"};

// Replaces the job id in a path by that of trial 0, because a folder may have the id in its name.
std::string set_first_job_id(std::string word) {
  if (word.find('/') == std::string::npos) return word;
  for (const char* id : kJobIds) {
    for (size_t at = word.find(id); at != std::string::npos; at = word.find(id, at + 1))
      word.replace(at, std::string(id).size(), kJobIds[0]);
  }
  return word;
}

// The flags whose values differ between two trials.
std::set<std::string> different_flags(const LaunchScript& first, const LaunchScript& second) {
  std::map<std::string, std::string> values[2];
  for (const int side : {0, 1}) {
    std::string flag = "the words before the first flag";
    for (const std::string& word : (side == 0 ? first : second).flags) {
      if (word.rfind("--", 0) == 0) flag = word.substr(0, word.find('='));
      values[side][has_mark(flag) ? "a flag" : flag] += set_first_job_id(word) + '\n';
    }
  }
  std::set<std::string> different;
  for (const int side : {0, 1}) {
    for (const auto& [flag, value] : values[side]) {
      const auto other = values[1 - side].find(flag);
      const bool differs = other == values[1 - side].end() || other->second != value;
      if (differs && !is_harmless(flag)) different.insert(flag);
    }
  }
  if (first.program != second.program) different.insert("the training program");
  return different;
}

// Returns the programs whose output or status was assumed before the training command; assumed numbers and statuses
// first.
std::string assumed_programs(const Reading& reading, const std::string& path) {
  std::string found;
  for (const bool value : {true, false}) {
    for (size_t i = 0; i < reading.at; ++i) {
      const std::vector<std::string>& words = reading.commands[i].words;
      const bool is_value = words.size() > 1 && (words[1] == "#" || words[1] == "?");
      if (words[0].rfind(kMark, 0) == 0 && is_value == value) add_once(found, marked_program(words[0], path));
    }
  }
  return found;
}

bool has_missing_folder(const Reading& reading) {
  const std::string& printed = reading.trial.printed;
  return reading.script.flags.empty() &&
         (printed.find(": cd: ") != std::string::npos || printed.find(": pushd: ") != std::string::npos);
}

bool ends_with_error(const Reading& reading) { return reading.script.flags.empty() && reading.trial.status != 0; }

// Adds a note on each script whose text the trial cannot read.
void note_unknown_scripts(const Reading& reading, const std::string& path, std::string& note) {
  for (const Command& command : reading.commands) {
    const std::vector<std::string>& words = command.words;
    if (words.size() != 3 || words[1] != "-" || words[0].rfind(kMark, 0) != 0) continue;
    const std::string text =
        base::concat("the text of ", words[2], " comes from ", marked_program(words[0], path),
                     ", which a trial does not start: the commands of ", words[2], " are not read");
    if (note.find(text) == std::string::npos) note += (note.empty() ? "" : "; ") + text;
  }
}

// Returns a note about the values used in place of those of a Slurm job.
std::string job_note(const Source& source, const Reading& reading) {
  const std::string task = first_array_task(source.slurm_options);
  std::string note;
  if (!task.empty())
    note = base::concat("task ", task, " of the job array is read, unless SLURM_ARRAY_TASK_ID is set");
  const bool named = std::any_of(reading.script.flags.begin(), reading.script.flags.end(),
                                 [](const std::string& word) { return word.find(kJobIds[0]) != std::string::npos; });
  if (named)
    note += base::concat(note.empty() ? "" : "; ", kJobIds[0],
                         " is used for SLURM_JOB_ID; set SLURM_JOB_ID to use another value");
  return note;
}

// Returns the keys of branches that trial 0 did not take.
std::vector<std::string> other_branches(const Reading& reading) {
  std::vector<std::string> keys;
  for (const Command& command : reading.commands) {
    if (command.words.size() == 3 && command.words[1] == "?" && command.words[0].rfind(kMark, 0) == 0)
      keys.push_back(command.words[2]);
  }
  return keys;
}

// Adds a note on each decision of a trial whose other branch cannot be taken.
void note_branches(const Reading& reading, const std::string& path, std::string& note) {
  for (const Command& command : reading.commands) {
    const std::vector<std::string>& words = command.words;
    if (words.size() != 3 || words[1] != "~" || words[0].rfind(kMark, 0) != 0) continue;
    const std::string text = base::concat("the branch at `", words[2], "` depends on ",
                                          marked_program(words[0], path), ", but only one was tried");
    if (note.find(text) == std::string::npos) note += (note.empty() ? "" : "; ") + text;
  }
}

// Repeats the trial with other assumptions about unknown programs. A flag whose value changes depends on such a
// program. A trial that ends with an error and without training is ignored, because a check in the script failed.
void check_against_assumptions(Reading& first, const Source& source, std::chrono::milliseconds patience) {
  const std::string programs = assumed_programs(first, source.path);
  if (programs.empty()) return;
  std::vector<Assumption> assumptions;
  for (int number = 0; number < kTrials; ++number) {
    if (number != first.assumed.number) assumptions.push_back({number, ""});
  }
  const std::vector<std::string> branches = other_branches(first);
  // The branches of trial 0 with a different text of marks.
  if (!branches.empty()) assumptions.push_back({0, "none"});
  for (size_t i = 0; i < branches.size() && branches.size() > 1; ++i) assumptions.push_back({0, branches[i]});
  std::string& note = first.script.note;
  if (assumptions.size() > kMaxBranches) {
    note = base::concat(branches.size(), " branches depend on programs, but only ", kMaxBranches, " were tried");
    assumptions.resize(kMaxBranches);
  }
  for (const Assumption& assumed : assumptions) {
    if (!assumed.branch.empty() && Clock::now() > source.deadline) {
      note += base::concat(note.empty() ? "" : "; ",
                           "the time limit of all trials was reached before each branch that depends on ", programs,
                           " was tried");
      break;
    }
    Reading other;
    try {
      other = read_once(source, assumed, patience);
    } catch (const base::Error&) {
      continue;  // the script waits in a loop for a program
    }
    note_branches(other, source.path, note);
    if (ends_with_error(other)) continue;
    std::set<std::string> different = different_flags(first.script, other.script);
    if (!different.empty()) {
      const Reading control = read_once(source, first.assumed, patience);  // excludes values such as $$ and the time
      for (const std::string& flag : different_flags(first.script, control.script)) different.erase(flag);
    }
    std::string list;
    for (const std::string& flag : different) list += (list.empty() ? "" : ", ") + flag;
    MPX_CHECK(list.empty(), "config", source.path, ": depends on the output of a program: ", list, " (", programs,
              ")", kManualHint);
    if (other.script.ranks != first.script.ranks) {
      first.script.ranks = 0;
      first.script.unknown_ranks = base::concat("a launcher whose number of ranks depends on ", programs);
    }
  }
}

// Runs a trial. If the script submits a Slurm job, runs a second one with the variables of that job's options.
Reading read_job(Source& source) {
  Reading reading = read_once(source, {}, kTrialTimeout);
  std::vector<std::string> options = source.slurm_options;
  for (const std::string& word : job_options(reading.launcher)) options.push_back(word);
  if (slurm_variables(options) == slurm_variables(source.slurm_options)) return reading;
  source.slurm_options = options;
  return read_once(source, {}, kTrialTimeout);
}

Source read_source(const std::string& path, const std::vector<std::string>& arguments) {
  std::error_code code;
  MPX_CHECK(std::filesystem::exists(path, code) && !std::filesystem::is_directory(path, code) &&
                access(path.c_str(), R_OK) == 0,
            "config", "cannot read the Megatron arguments ", path, "; check the path");
  Source source{path, read_text(path, kMaxScriptBytes), "", "", arguments, {}, std::random_device()() % 32768};
  std::string& text = source.text;
  MPX_CHECK(text.size() <= kMaxScriptBytes && text.find('\0') == std::string::npos, "config", path,
            " is not a launch script: ",
            text.size() > kMaxScriptBytes ? "it is larger than a megabyte" : "it contains zero bytes");
  source.slurm_options = read_slurm_options(text);
  source.script = path.find('/') == std::string::npos ? "./" + path : path;
  if (text.find('\r') != std::string::npos || !std::filesystem::is_regular_file(path, code)) {
    text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
    source.copy = text + "\n";
    source.script = base::concat("/proc/self/fd/", kScriptFd);
  }
  return source;
}

}  // namespace

LaunchScript read_launch_script(const std::string& path, const std::vector<std::string>& arguments,
                                std::chrono::milliseconds all_trials) {
  Source source = read_source(path, arguments);
  const auto begin = Clock::now();
  source.deadline = begin + all_trials;
  Reading first = read_job(source);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  source.assumes_folders = has_missing_folder(first);
  if (source.assumes_folders) first = read_job(source);
  check_branches_known(first.commands, first.at, first.trial.printed, path);
  for (int number = 1; number < kTrials && ends_with_error(first) && !assumed_programs(first, path).empty();
       ++number) {
    Reading other = read_once(source, {number, ""}, kTrialTimeout);
    if (!other.script.flags.empty()) first = std::move(other);
  }
  check_branches_known(first.commands, first.at, first.trial.printed, path);
  check_flags_are_known(first.script, path);
  const std::string said = last_lines(first.trial.printed);
  MPX_CHECK(!first.script.flags.empty(), "config", path, ": starts no training (the exit status of bash is ",
            first.trial.status, syntax_error_cause(said, source.text),
            "); expected a command such as torchrun ... pretrain_gpt.py --num-layers 12 ...",
            marked_programs(first.commands, path), said.empty() ? "" : "; the script printed:\n" + said);
  check_against_assumptions(first, source, std::max<std::chrono::milliseconds>(std::chrono::seconds(2), 3 * took));
  std::string& note = first.script.note;
  note_unknown_scripts(first, path, note);
  for (const std::string& more : {job_note(source, first), other_programs_note(first)})
    if (!more.empty()) note += (note.empty() ? "" : "; ") + more;
  if (source.assumes_folders) {
    note += base::concat(note.empty() ? "" : "; ",
                         "a folder of cd or pushd does not exist on this machine: the script was read as if it "
                         "existed, with relative paths starting at the previous folder");
  }
  return first.script;
}

}  // namespace metroplex::megatron
