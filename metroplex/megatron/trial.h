// Inside the room: bash, run behind the filter of trial_filter.h, and the answers to what it asks of us. The first
// program that is started is bash; tools that only read (kTrialTools) may follow, and every other start is written
// down and refused. What would be written into files goes nowhere. The whole process tree ends with the trial, or
// with us, and has limits of time, memory, processes and output.
#pragma once

#include <string>
#include <vector>

namespace metroplex::megatron {

// From kToolFolders only, whatever PATH says; behind the filter none of them can write or start anything either.
inline constexpr const char* kTrialTools[] = {
    "basename", "dirname", "realpath", "readlink", "cat",    "head", "tail",  "cut",  "tr",
    "seq",      "date",    "hostname", "nproc",    "sed",    "awk",  "grep",  "sort", "uniq",
    "wc",       "expr",    "uname",    "id",       "whoami", "ls",   "getopt"};
inline constexpr const char* kToolFolders[] = {"/usr/bin/", "/bin/"};
// Of bash: where it writes its records, and where it finds a script of which there is no file.
inline constexpr int kRecordFd = 199, kScriptFd = 198;

struct Command {
  std::string folder;
  std::vector<std::string> words;
};

struct Trial {
  int status = 0;                // bash's exit code
  std::string record;            // what came through kRecordFd
  std::string printed;           // the end of its standard output and error
  std::vector<Command> refused;  // programs that were not started
};

// `words` are bash's own from $0 on; `script`, if not empty, is what kScriptFd reads. Throws base::Error("config"),
// `source` named, at a limit and where there is no such filter.
Trial run_trial(const std::string& source, const std::vector<std::string>& words, const std::string& script);

}  // namespace metroplex::megatron
