// What a rank says to our own launcher before it ends: whose failure it was, with which code it is going to exit, and
// the cause. Written to LaunchEnvironment::cause_fd by run_process, read by spawn_processes.
#pragma once

#include <optional>
#include <string>

namespace metroplex::comm {

struct Report {
  bool own = false;  // false: it stops because of another rank
  int exit_code = 1;
  std::string cause;  // cut to 3000 bytes, so that one write to a pipe stays in one piece
};

std::string encode(const Report& report);
// The first one in what came through the pipe; nothing before it is complete.
std::optional<Report> decode_report(const std::string& text);

}  // namespace metroplex::comm
