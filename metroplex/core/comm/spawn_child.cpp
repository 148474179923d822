#include "comm/spawn_child.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "comm/backends/watch_link.h"

namespace metroplex::comm {

Listener::Listener(uint16_t port) : secret_(random_secret()), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  MPX_CHECK(fd_ >= 0, "comm", "cannot create a socket: ", std::strerror(errno));
  const int one = 1;
  ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool bound =
      ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(fd_, 1024) == 0;
  if (!bound) {
    const std::string error = std::strerror(errno);
    ::close(fd_);
    throw base::Error("comm", base::concat("port ", port, " of 127.0.0.1 cannot be used: ", error,
                                           "; choose another port, or 0 for a free one"));
  }
  socklen_t size = sizeof address;
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
}

Listener::~Listener() { ::close(fd_); }

namespace {

std::vector<std::string> make_environment(int rank, const SpawnOptions& options, const Listener& listener,
                                          int cause_fd) {
  std::vector<std::string> variables;
  bool has_threads = false;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    has_threads = has_threads || text.rfind("OMP_NUM_THREADS=", 0) == 0;
    const bool is_of_user = text.rfind("METROPLEX_DEPS", 0) == 0 || text.rfind("METROPLEX_SHARE_GPUS=", 0) == 0;
    if (text.rfind("METROPLEX_", 0) != 0 || is_of_user) variables.push_back(text);
  }
  const auto set = [&](const std::string& name, const std::string& value) {
    variables.push_back(name + "=" + value);
  };
  set("METROPLEX_RANK", std::to_string(rank));
  set("METROPLEX_WORLD_SIZE", std::to_string(options.num_processes));
  set("METROPLEX_LOCAL_RANK", std::to_string(rank));
  set("METROPLEX_LOCAL_WORLD_SIZE", std::to_string(options.num_processes));
  set("METROPLEX_MASTER_ADDR", "127.0.0.1");
  set("METROPLEX_MASTER_PORT", std::to_string(listener.port()));
  set("METROPLEX_SECRET", listener.secret());
  set("METROPLEX_CAUSE_FD", std::to_string(cause_fd));
  if (rank == 0) set("METROPLEX_LISTEN_FD", std::to_string(listener.fd()));
  if (!has_threads) set("OMP_NUM_THREADS", "1");
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

void clear_cloexec(int fd) { ::fcntl(fd, F_SETFD, 0); }

}  // namespace

Child start_child(int rank, const SpawnOptions& options, const Listener& listener, const sigset_t& mask) {
  int pipe_ends[2];
  MPX_CHECK(::pipe2(pipe_ends, O_CLOEXEC) == 0, "comm", "cannot create a pipe: ", std::strerror(errno));
  std::vector<std::string> command = options.command;
  std::vector<std::string> variables = make_environment(rank, options, listener, pipe_ends[1]);
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(variables);
  const std::string not_started = encode(Report{true, 127, "the program could not be started"});
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {  // only async-signal-safe calls until exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    clear_cloexec(pipe_ends[1]);
    if (rank == 0) clear_cloexec(listener.fd());
    ::execvpe(argv[0], argv.data(), envp.data());
    [[maybe_unused]] const ssize_t written = ::write(pipe_ends[1], not_started.data(), not_started.size());
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  MPX_CHECK(pid > 0, "comm", "rank ", rank, " could not be started: ", std::strerror(errno));
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.pid = pid;
  child.cause_fd = pipe_ends[0];
  return child;
}

}  // namespace metroplex::comm
