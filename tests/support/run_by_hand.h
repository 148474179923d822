// Starts one process of the test program per rank with only the calling test, as an external launcher does: with its
// variables and without our own launcher. The ranks run the branch of launch_from_environment().
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/notes.h"

namespace metroplex::test {

inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

using Variables = std::vector<std::string>;  // "NAME=value"

inline Variables as_torchrun(int rank, int num_ranks, int port) {
  return {base::concat("RANK=", rank),        base::concat("WORLD_SIZE=", num_ranks),
          base::concat("LOCAL_RANK=", rank),  base::concat("LOCAL_WORLD_SIZE=", num_ranks),
          base::concat("MASTER_PORT=", port), "MASTER_ADDR=127.0.0.1"};
}

inline Variables as_slurm(int rank, int num_ranks, int port) {
  return {base::concat("SLURM_PROCID=", rank),  base::concat("SLURM_STEP_NUM_TASKS=", num_ranks),
          base::concat("SLURM_LOCALID=", rank), base::concat("SLURM_STEP_TASKS_PER_NODE=", num_ranks),
          base::concat("MASTER_PORT=", port),   "SLURM_STEP_NODELIST=localhost"};
}

struct ExitRecord {
  int code = -1;  // 128 + signal if killed
  Clock::time_point at;
};

inline std::vector<ExitRecord> run_by_hand(int num_ranks, const std::function<Variables(int rank)>& variables) {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < num_ranks; ++rank) {
    Variables set = variables(rank);
    set.push_back("OMP_NUM_THREADS=1");
    set.push_back("TORCH_CPP_LOG_LEVEL=ERROR");
    std::vector<std::string> line{"/usr/bin/env"};
    line.insert(line.end(), set.begin(), set.end());
    line.insert(line.end(), {"/proc/" + std::to_string(::getpid()) + "/exe", filter, "--gtest_brief=1"});
    std::vector<char*> argv;
    for (std::string& word : line) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    pids.push_back(pid);
  }
  std::vector<ExitRecord> ended(static_cast<size_t>(num_ranks));
  for (int left = num_ranks; left > 0;) {
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      int status = 0;
      if (pids[rank] < 0 || ::waitpid(pids[rank], &status, WNOHANG) != pids[rank]) continue;
      ended[rank] = {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), Clock::now()};
      pids[rank] = -1;
      --left;
    }
    ::usleep(2000);
  }
  return ended;
}

}  // namespace metroplex::test
