#include "megatron/trial.h"

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

namespace metroplex::megatron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(20);
// What a script left in the background may take to reach its command, once the script has ended.
constexpr auto kAftermath = std::chrono::milliseconds(500);
constexpr size_t kMostRecorded = size_t{4} << 20, kMostPrinted = size_t{64} << 10;
constexpr size_t kMostWords = 4096;
constexpr int kMostProcesses = 2048;

// What a waiting process has in its memory.
class Memory {
 public:
  explicit Memory(pid_t pid) : file_(open(base::concat("/proc/", pid, "/mem").c_str(), O_RDONLY | O_CLOEXEC)) {}
  bool readable() const { return file_.get() >= 0; }

  std::string text(uint64_t at) const {
    std::string out;
    while (out.size() < (size_t{128} << 10)) {
      char page[256];
      const size_t wanted = sizeof page - at % sizeof page;  // never across the end of a mapping
      const ssize_t got = pread(file_.get(), page, wanted, static_cast<off_t>(at));
      if (got <= 0) break;
      const void* zero = std::memchr(page, 0, static_cast<size_t>(got));
      if (zero != nullptr) return out.append(static_cast<const char*>(page), static_cast<const char*>(zero));
      out.append(page, static_cast<size_t>(got));
      at += static_cast<uint64_t>(got);
    }
    return out;
  }

  std::vector<std::string> words(uint64_t at) const {
    std::vector<std::string> out;
    for (uint64_t word = 0; out.size() < kMostWords; at += sizeof word) {
      if (pread(file_.get(), &word, sizeof word, static_cast<off_t>(at)) != sizeof word || word == 0) break;
      out.push_back(text(word));
    }
    return out;
  }

 private:
  Descriptor file_;
};

std::string link_of(pid_t pid, const char* name) {
  char path[PATH_MAX];
  const ssize_t length = readlink(base::concat("/proc/", pid, "/", name).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

// Zero bytes first: the kernel insists.
struct Notices {
  Notices() {
    MPX_CHECK(seccomp_notify_alloc(&request, &response) == 0, "config", "no memory for the trial of a script");
  }
  ~Notices() { seccomp_notify_free(request, response); }
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;
  seccomp_notif* request = nullptr;
  seccomp_notif_resp* response = nullptr;
};

class Watch {
 public:
  Watch(const std::vector<std::string>& words, const std::string& script)
      : process_(words, script, pipes_), null_(open("/dev/null", O_RDWR | O_CLOEXEC)) {}

  Trial run() {
    const auto begin = Clock::now();
    bool ended = false;
    Clock::time_point end;
    for (;;) {
      serve();
      if (!ended && process_.ended(trial_.status)) {
        ended = true;
        end = Clock::now();
      }
      if (ended && (pipes_.printed.get() < 0 || Clock::now() > end + kAftermath)) break;
      MPX_CHECK(ended || Clock::now() < begin + kPatience, "config", "its trial run did not end within ",
                kPatience.count(), " s; does it wait or loop?");
    }
    process_.end();
    while (take(pipes_.record, trial_.record)) {}
    return std::move(trial_);
  }

 private:
  void serve() {
    pollfd waiting[] = {
        {pipes_.listener.get(), POLLIN, 0}, {pipes_.record.get(), POLLIN, 0}, {pipes_.printed.get(), POLLIN, 0}};
    poll(waiting, 3, 2);
    if ((waiting[0].revents & POLLIN) != 0) {
      answer();
    } else if (waiting[0].revents != 0) {
      pipes_.listener.close();
    }
    if (waiting[1].revents != 0) take(pipes_.record, trial_.record);
    if (waiting[2].revents != 0) take(pipes_.printed, trial_.printed);
    MPX_CHECK(trial_.record.size() <= kMostRecorded && trial_.refused.size() <= kMostWords, "config",
              "its trial run starts no end of commands; does it loop?");
    if (trial_.printed.size() > kMostPrinted) trial_.printed.erase(0, trial_.printed.size() - kMostPrinted / 2);
  }

  static bool take(Descriptor& from, std::string& into) {
    char bytes[8192];
    if (from.get() < 0) return false;
    const ssize_t got = read(from.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return true;
    if (got <= 0) {
      from.close();
      return false;
    }
    into.append(bytes, static_cast<size_t>(got));
    return true;
  }

  void answer() {
    Notices notices;
    if (seccomp_notify_receive(pipes_.listener.get(), notices.request) != 0) return;  // it was ended meanwhile
    seccomp_notif_resp& response = *notices.response;
    response.id = notices.request->id;
    const seccomp_notif& request = *notices.request;
    switch (request.data.nr) {
      case SYS_execve:
        answer_start(request, response);
        break;
#ifdef SYS_fork
      case SYS_fork:
#endif
      case SYS_clone:
        MPX_CHECK(++processes_ <= kMostProcesses, "config", "its trial run makes more than ", kMostProcesses,
                  " processes; does it loop?");
        response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        break;
      default:
        answer_open(request, response);
    }
    seccomp_notify_respond(pipes_.listener.get(), &response);  // may fail: it was ended meanwhile
  }

  void answer_start(const seccomp_notif& request, seccomp_notif_resp& response) {
    const auto pid = static_cast<pid_t>(request.pid);
    const Memory memory(pid);
    if (!started_) {
      MPX_CHECK(memory.readable() && memory.text(request.data.args[0]) == bash_path(), "config",
                "the filter of system calls behind which it is tried cannot be had (the memory of its processes "
                "cannot be read)");
      process_.limit();
      started_ = true;
      response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      return;
    }
    Command command{link_of(pid, "cwd"), memory.words(request.data.args[1])};
    if (!command.words.empty() && seccomp_notify_id_valid(pipes_.listener.get(), request.id) == 0) {
      print_mark(pid, command.words[0]);
      trial_.refused.push_back(std::move(command));
    }
    response.error = -EPERM;
  }

  // Into a pipe that the trial has made for what the program would have printed.
  void print_mark(pid_t pid, const std::string& program) const {
    struct stat printed {};
    const std::string out = link_of(pid, "fd/1");
    if (out.rfind("pipe:", 0) != 0 || fstat(pipes_.printed.get(), &printed) != 0 ||
        out == base::concat("pipe:[", printed.st_ino, "]"))
      return;
    // For reading too, so that it cannot break while we write.
    const Descriptor pipe(open(base::concat("/proc/", pid, "/fd/1").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    const std::string mark = base::concat(kMark, program.substr(program.rfind('/') + 1), "@@@\n");
    [[maybe_unused]] const ssize_t written = write(pipe.get(), mark.data(), mark.size());
  }

  // Whatever it would have written goes nowhere.
  void answer_open(const seccomp_notif& request, seccomp_notif_resp& response) const {
    seccomp_notif_addfd add{};
    add.id = request.id;
    add.srcfd = static_cast<uint32_t>(null_.get());
    const uint64_t flags = request.data.nr == SYS_openat ? request.data.args[2] : request.data.args[1];
    if ((flags & O_CLOEXEC) != 0) add.newfd_flags = O_CLOEXEC;
    const int fd = ioctl(pipes_.listener.get(), SECCOMP_IOCTL_NOTIF_ADDFD, &add);
    response.error = fd < 0 ? -EPERM : 0;
    response.val = fd < 0 ? 0 : fd;
  }

  TrialPipes pipes_;
  TrialProcess process_;
  Descriptor null_;
  Trial trial_;
  bool started_ = false;
  int processes_ = 0;
};

}  // namespace

Trial run_trial(const std::string& source, const std::vector<std::string>& words, const std::string& script) {
  try {
    return Watch(words, script).run();
  } catch (const base::Error& error) {
    const std::string text = std::string(error.what()).substr(error.room().size() + 3);
    throw base::Error(error.room(), base::concat(source, ": ", text));
  }
}

}  // namespace metroplex::megatron
