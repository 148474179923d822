#include "megatron/trial.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "megatron/trial_files.h"
#include "megatron/trial_memory.h"

extern char** environ;

namespace metroplex::megatron {
namespace {

constexpr rlim_t kMemory = rlim_t{1} << 30, kProcessorSeconds = 10;
constexpr int kHandOver = 197;     // the child's end of the socket, until bash starts
constexpr int kFirstFreeFd = 256;  // above all numbers that bash uses

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  MPX_CHECK(pipe2(ends, O_CLOEXEC) == 0, "config", "cannot create a pipe to bash (", std::strerror(errno), ")");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Sends one number and, on success, the listener.
void send_descriptors(int problem, int listener) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&problem, sizeof problem};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (listener >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &listener, sizeof listener);
  }
  [[maybe_unused]] const ssize_t sent = sendmsg(kHandOver, &message, MSG_NOSIGNAL);
}

Descriptor receive_descriptors(int socket) {
  int problem = EPROTO, listener = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&problem, sizeof problem};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got > 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&listener, CMSG_DATA(header), sizeof listener);
  MPX_CHECK(listener >= 0, "config", "the system call filter for its trial is not available (",
            std::strerror(problem), ")");
  return Descriptor(listener);
}

struct Child {
  scmp_filter_ctx filter;
  char* const* words;
  char* const* environment;
  const char* program;
  pid_t group;
  int printed, record, script, socket;
};

void close_other_descriptors(const Child& child) {
  const int null = open("/dev/null", O_RDONLY);
  // First moves the descriptors above all target numbers.
  std::array<std::pair<int, int>, 4> wanted{
      {{child.record, kRecordFd}, {child.script, kScriptFd}, {child.socket, kHandOver}, {child.printed, 1}}};
  for (auto& [fd, number] : wanted) fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD, kFirstFreeFd);
  dup2(null, 0);
  for (const auto& [fd, number] : wanted) {
    if (fd >= 0) dup2(fd, number);
  }
  dup2(1, 2);
  fcntl(kHandOver, F_SETFD, FD_CLOEXEC);
  close_range(3, kHandOver - 1, 0);
  if (child.script < 0) close(kScriptFd);
  close_range(kRecordFd + 1, ~0U, 0);
}

void prefer_for_oom_killer() {
  const int score = open("/proc/self/oom_score_adj", O_WRONLY);
  [[maybe_unused]] const ssize_t written = write(score, "1000", 4);
  close(score);
}

[[noreturn]] void become_bash(const Child& child) {
  setpgid(0, child.group);
  for (const int signal : {SIGPIPE, SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // a write past kMaxFileBytes fails, and the script continues
  prefer_for_oom_killer();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  close_other_descriptors(child);
  const int problem = -seccomp_load(child.filter);
  const int listener = problem == 0 ? seccomp_notify_fd(child.filter) : -1;
  send_descriptors(problem, listener);
  if (listener >= 0) {
    close(listener);
    execve(child.program, child.words, child.environment);
  }
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

Descriptor make_memory_file(const std::string& text) {
  if (text.empty()) return Descriptor();
  Descriptor file(memfd_create("launch script", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const ssize_t written = file.get() < 0 ? -1 : write(file.get(), text.data(), text.size());
  MPX_CHECK(written == static_cast<ssize_t>(text.size()), "config",
            "cannot allocate memory for a copy of the script (", std::strerror(errno), ")");
  fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return file;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string bash_path() {
  for (const char* path : {"/usr/bin/bash", "/bin/bash", "/usr/local/bin/bash"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

void TrialProcess::start_guard() {
  auto [reading, writing] = make_pipe();
  guard_ = fork();
  if (guard_ == 0) {
    setpgid(0, 0);
    dup2(reading.get(), 0);
    close_range(1, ~0U, 0);
    char byte = 0;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
    kill(0, SIGKILL);
    ::_exit(0);
  }
  MPX_CHECK(guard_ > 0, "config", "cannot create a process for bash (", std::strerror(errno), ")");
  setpgid(guard_, guard_);  // avoids a race with the guard's own setpgid
  alive_ = std::move(writing);
}

TrialProcess::TrialProcess(const std::vector<std::string>& words, const std::string& script, TrialPipes& pipes) {
  const std::string program = bash_path();
  MPX_CHECK(!program.empty(), "config", "bash, which reads it, was not found");
  constexpr rlim_t kOpenFiles = kFirstFreeFd + 8;
  rlimit files{};
  MPX_CHECK(getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= kOpenFiles, "config",
            "RLIMIT_NOFILE = ", files.rlim_cur, ": must be at least ", kOpenFiles,
            " for its trial; raise the limit (ulimit -n)");
  auto [record, record_in] = make_pipe();
  auto [printed, printed_in] = make_pipe();
  const Descriptor copy = make_memory_file(script);
  int sockets[2];
  MPX_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "config",
            "cannot create a socket to bash (", std::strerror(errno), ")");
  const Descriptor ours(sockets[0]);
  Descriptor theirs(sockets[1]);
  std::vector<std::string> all = words, variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "BASH_ENV=", 9) != 0) variables.emplace_back(*variable);
  }
  const std::vector<char*> argv = pointers(all), environment = pointers(variables);
  const scmp_filter_ctx filter = make_trial_filter(kHandOver);
  MPX_CHECK(filter != nullptr, "config", "the system call filter for its trial is not available for this processor");
  start_guard();
  const Child child{filter,           argv.data(),     environment.data(), program.c_str(), guard_,
                    printed_in.get(), record_in.get(), copy.get(),         theirs.get()};
  bash_ = fork();
  if (bash_ == 0) become_bash(child);
  const int error = errno;
  seccomp_release(filter);
  theirs.close();
  try {
    MPX_CHECK(bash_ > 0, "config", "cannot create a process for bash (", std::strerror(error), ")");
    pipes.listener = receive_descriptors(ours.get());
  } catch (...) {
    end();
    throw;
  }
  pipes.record = std::move(record);
  pipes.printed = std::move(printed);
}

void TrialProcess::limit() const {
  const std::pair<__rlimit_resource, rlim_t> limits[] = {
      {RLIMIT_AS, kMemory}, {RLIMIT_CPU, kProcessorSeconds}, {RLIMIT_FSIZE, kMaxFileBytes}, {RLIMIT_CORE, 0}};
  for (const auto& [what, most] : limits) {
    const rlimit both{most, most};
    MPX_CHECK(prlimit(bash_, what, &both, nullptr) == 0, "config", "the limits of its trial cannot be set (",
              std::strerror(errno), ")");
  }
}

size_t TrialProcess::memory_bytes() const {
  const std::string own = read_process_link(getpid(), "exe");
  size_t pages = 0;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", code)) {
    const std::string folder = entry.path().string();
    if (folder.find_first_not_of("0123456789", std::strlen("/proc/")) != std::string::npos) continue;
    std::string status;
    std::getline(std::ifstream(folder + "/stat"), status);
    const size_t name_end = status.rfind(") ");
    char state = 0;
    pid_t parent = 0, group = 0;
    if (name_end == std::string::npos ||
        std::sscanf(status.c_str() + name_end, ") %c %d %d", &state, &parent, &group) != 3 || group != guard_)
      continue;
    // The guard, and a child before its exec of bash, use memory of this program, not of the script.
    if (read_process_link(std::atoi(entry.path().filename().c_str()), "exe") == own) continue;
    size_t size = 0, resident = 0, shared = 0;
    std::ifstream memory(folder + "/statm");
    if (memory >> size >> resident >> shared) pages += resident - std::min(resident, shared);
  }
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool TrialProcess::ended(int& status) {
  if (bash_ < 0) return true;
  int how = 0;
  const pid_t found = waitpid(bash_, &how, WNOHANG);
  if (found == 0 || (found < 0 && errno == EINTR)) return false;
  bash_ = -1;
  // If this process ignores SIGCHLD, the exit code is lost.
  status = found < 0 ? 0 : WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  return true;
}

void TrialProcess::end() {
  if (guard_ < 0) return;
  kill(-guard_, SIGKILL);
  kill(guard_, SIGKILL);
  if (bash_ > 0) {
    kill(bash_, SIGKILL);
    waitpid(bash_, nullptr, 0);
  }
  waitpid(guard_, nullptr, 0);
  guard_ = bash_ = -1;
}

}  // namespace metroplex::megatron
