#include "megatron/trial.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "megatron/trial_files.h"
#include "megatron/trial_memory.h"

namespace metroplex::megatron {
namespace {

using Clock = std::chrono::steady_clock;
// Time after the script's end for its background processes to reach their commands.
constexpr auto kExitWait = std::chrono::milliseconds(500);
constexpr size_t kMaxRecorded = size_t{4} << 20, kMaxPrinted = size_t{64} << 10;
constexpr size_t kMaxStarts = 4096;
constexpr int kMaxProcesses = 2048;
constexpr size_t kMaxFiles = 512;
// Limit for all processes and files of the trial together.
constexpr size_t kMaxMemory = size_t{1} << 30;

struct PathCall {
  enum Kind { kOpen, kStatus, kAccess, kRemove } kind = kOpen;
  int folder = AT_FDCWD;  // base of a relative path
  uint64_t path = 0;      // address
  int flags = 0;          // of open(2)
  uint64_t status = 0;    // address of struct stat
  bool foreign = false;   // is_foreign_stream of a call that opens for reading
};

PathCall to_path_call(const seccomp_data& call) {
  const auto& args = call.args;
  switch (call.nr) {
#ifdef SYS_open
    case SYS_open:
      return {PathCall::kOpen, AT_FDCWD, args[0], static_cast<int>(args[1])};
    case SYS_creat:
      return {PathCall::kOpen, AT_FDCWD, args[0], O_CREAT | O_WRONLY | O_TRUNC};
    case SYS_stat:
    case SYS_lstat:
      return {PathCall::kStatus, AT_FDCWD, args[0], 0, args[1]};
    case SYS_access:
      return {PathCall::kAccess, AT_FDCWD, args[0]};
    case SYS_unlink:
      return {PathCall::kRemove, AT_FDCWD, args[0]};
#endif
    case SYS_newfstatat:
      return {PathCall::kStatus, static_cast<int>(args[0]), args[1], 0, args[2]};
    case SYS_faccessat:
    case SYS_faccessat2:
      return {PathCall::kAccess, static_cast<int>(args[0]), args[1]};
    case SYS_unlinkat:
      return {PathCall::kRemove, static_cast<int>(args[0]), args[1]};
    default:
      return {PathCall::kOpen, static_cast<int>(args[0]), args[1], static_cast<int>(args[2])};
  }
}

// seccomp_notify_alloc returns zeroed memory, as the kernel requires.
struct Notices {
  Notices() {
    MPX_CHECK(seccomp_notify_alloc(&request, &response) == 0, "config",
              "cannot allocate memory for the trial of a script");
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

  Trial run(std::chrono::milliseconds patience) {
    const auto begin = Clock::now();
    bool ended = false;
    Clock::time_point end;
    for (;;) {
      serve();
      if (!ended && process_.ended(trial_.status)) {
        ended = true;
        end = Clock::now();
      }
      limit_memory();
      // A background process may have redirected its output and may still record commands.
      const bool all_ended = ended && pipes_.printed.get() < 0 && pipes_.record.get() < 0;
      if (all_ended || (ended && Clock::now() > end + kExitWait)) break;
      MPX_CHECK(ended || Clock::now() < begin + patience, "config", "its trial run did not end within ",
                patience.count() / 1000, " s; check whether it waits or loops");
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
    MPX_CHECK(trial_.record.size() + refused_bytes_ <= kMaxRecorded && trial_.refused.size() <= kMaxStarts, "config",
              "its trial run starts more than ", kMaxStarts, " commands or ", kMaxRecorded,
              " bytes of commands; check whether it loops");
    if (trial_.printed.size() > kMaxPrinted) trial_.printed.erase(0, trial_.printed.size() - kMaxPrinted / 2);
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

  // Scanning /proc is slow with many processes, so scans take at most a tenth of the time.
  void limit_memory() {
    const auto now = Clock::now();
    if (now < next_scan_) return;
    const size_t bytes = process_.memory_bytes() + files_.bytes();
    next_scan_ = Clock::now() + std::max<Clock::duration>(std::chrono::milliseconds(50), 10 * (Clock::now() - now));
    MPX_CHECK(bytes <= kMaxMemory, "config", "its trial run needs more than ", kMaxMemory >> 30,
              " GiB of memory; check whether it loops");
  }

  void answer() {
    Notices notices;
    if (seccomp_notify_receive(pipes_.listener.get(), notices.request) != 0) return;  // the process has ended
    seccomp_notif_resp& response = *notices.response;
    response.id = notices.request->id;
    const seccomp_notif& request = *notices.request;
    switch (request.data.nr) {
      case SYS_execve:
        loaded_ = started_;
        answer_start(request, response);
        break;
#ifdef SYS_fork
      case SYS_fork:
#endif
      case SYS_clone:
        loaded_ = true;
        MPX_CHECK(++processes_ <= kMaxProcesses, "config", "its trial run creates more than ", kMaxProcesses,
                  " processes; check whether it loops");
        response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        break;
      case SYS_mmap:
      case SYS_mprotect:
        // Only bash and its libraries map code; a script could load its own.
        if (loaded_) {
          response.error = -EPERM;
        } else {
          response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        }
        break;
      default:
        answer_path(request, response);
    }
    seccomp_notify_respond(pipes_.listener.get(), &response);  // may fail if the process has ended
  }

  void answer_start(const seccomp_notif& request, seccomp_notif_resp& response) {
    const auto pid = static_cast<pid_t>(request.pid);
    const ProcessMemory memory(pid);
    if (!started_) {
      MPX_CHECK(memory.readable() && memory.text(request.data.args[0]) == bash_path(), "config",
                "the system call filter for its trial is not available (the memory of its processes "
                "cannot be read)");
      process_.limit();
      started_ = true;
      response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      return;
    }
    Command command{read_process_link(pid, "cwd"), memory.words(request.data.args[1], kMaxRecorded)};
    if (!command.words.empty() && seccomp_notify_id_valid(pipes_.listener.get(), request.id) == 0) {
      print_mark(pid, command.words[0]);
      for (const std::string& word : command.words) refused_bytes_ += word.size() + sizeof word;
      trial_.refused.push_back(std::move(command));
    }
    response.error = -EPERM;
  }

  // Writes the mark if the program's output is a pipe inside the trial.
  void print_mark(pid_t pid, const std::string& program) const {
    struct stat printed {};
    const std::string out = read_process_link(pid, "fd/1");
    if (out.rfind("pipe:", 0) != 0 || fstat(pipes_.printed.get(), &printed) != 0 ||
        out == base::concat("pipe:[", printed.st_ino, "]"))
      return;
    // O_RDWR avoids SIGPIPE during the write.
    const Descriptor pipe(open(base::concat("/proc/", pid, "/fd/1").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    const std::string mark = base::concat(kMark, program.substr(program.rfind('/') + 1), "@@@\n");
    [[maybe_unused]] const ssize_t written = write(pipe.get(), mark.data(), mark.size());
  }

  void answer_path(const seccomp_notif& request, seccomp_notif_resp& response) {
    PathCall call = to_path_call(request.data);
    const bool changes = call.kind == PathCall::kRemove || (call.flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != 0;
    if ((call.flags & O_CREAT) != 0) loaded_ = true;
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    const bool reads = !changes && call.kind == PathCall::kOpen;
    if (!changes && !reads && files_.empty()) return;
    const auto pid = static_cast<pid_t>(request.pid);
    const ProcessMemory memory(pid);
    std::string path = memory.text(call.path);
    if (seccomp_notify_id_valid(pipes_.listener.get(), request.id) != 0) return;  // the pid has been reused
    call.foreign = reads && is_foreign_stream(pid, call.folder, path);
    if (!changes && files_.empty()) return answer_by_kernel(request, response, call);
    const bool removes = call.kind == PathCall::kRemove || (changes && path.rfind(kRemoveFolder, 0) == 0);
    if (removes && call.kind == PathCall::kOpen) path.erase(0, std::strlen(kRemoveFolder));
    path = resolve_path(pid, call.folder, path);
    if (!changes && path.empty()) return;
    response.flags = 0;
    if (removes) {
      files_.remove(path);
      if (call.kind == PathCall::kOpen) give(request, response, null_.get(), call.flags);
    } else if (call.kind == PathCall::kOpen) {
      answer_open(request, response, call, path);
    } else {
      struct stat status {};
      const int error = files_.read_status(path, status);
      if (error == TrialFiles::kNotOurs) response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      response.error = error > 0 ? -error : 0;
      if (error == 0 && call.kind == PathCall::kStatus && !memory.write(call.status, &status, sizeof status))
        response.error = -EFAULT;
    }
  }

  void answer_open(const seccomp_notif& request, seccomp_notif_resp& response, const PathCall& call,
                   const std::string& path) {
    const bool shared_memory = path.rfind("/dev/shm/", 0) == 0;
    const bool device =
        path.empty() || path.rfind("/proc/", 0) == 0 || (path.rfind("/dev/", 0) == 0 && !shared_memory);
    if (device && (call.flags & (O_ACCMODE | O_CREAT | O_TRUNC)) == 0) {
      answer_by_kernel(request, response, call);
    } else if (device) {
      const Descriptor pipe = open_own_pipe(static_cast<pid_t>(request.pid), path);
      give(request, response, pipe.get() < 0 ? null_.get() : pipe.get(), call.flags);
    } else {
      Descriptor file;
      const int error = files_.open(path, call.flags, file);
      MPX_CHECK(files_.size() <= kMaxFiles, "config", "its trial run writes more than ", kMaxFiles,
                " files; check whether it loops");
      if (error == 0) give(request, response, file.get(), call.flags);
      if (error > 0) response.error = -error;
      if (error == TrialFiles::kNotOurs) answer_by_kernel(request, response, call);
    }
  }

  // Lets the kernel execute the call; a foreign stream is opened as /dev/null instead.
  void answer_by_kernel(const seccomp_notif& request, seccomp_notif_resp& response, const PathCall& call) const {
    response.flags = call.foreign ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    if (call.foreign) give(request, response, null_.get(), call.flags);
  }

  // Opens the pipe that /dev/stdout, /dev/fd/N or a similar path names. All pipes of a trial belong to it.
  static Descriptor open_own_pipe(pid_t pid, const std::string& path) {
    std::string name = path.substr(path.rfind('/') + 1);
    if (path == "/dev/stdout") name = "1";
    if (path == "/dev/stderr") name = "2";
    if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos) return Descriptor();
    if (read_process_link(pid, "fd/" + name).rfind("pipe:", 0) != 0) return Descriptor();
    Descriptor pipe(open(base::concat("/proc/", pid, "/fd/", name).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (pipe.get() >= 0) fcntl(pipe.get(), F_SETFL, O_WRONLY);
    return pipe;
  }

  void give(const seccomp_notif& request, seccomp_notif_resp& response, int file, int flags) const {
    seccomp_notif_addfd add{};
    add.id = request.id;
    add.srcfd = static_cast<uint32_t>(file);
    if ((flags & O_CLOEXEC) != 0) add.newfd_flags = O_CLOEXEC;
    const int given = ioctl(pipes_.listener.get(), SECCOMP_IOCTL_NOTIF_ADDFD, &add);
    response.error = given < 0 ? -EPERM : 0;
    response.val = given < 0 ? 0 : given;
  }

  TrialPipes pipes_;
  TrialProcess process_;
  Descriptor null_;
  Trial trial_;
  TrialFiles files_;
  bool started_ = false;
  bool loaded_ = false;  // bash has loaded its own code
  int processes_ = 0;
  size_t refused_bytes_ = 0;
  Clock::time_point next_scan_ = Clock::now();
};

}  // namespace

Trial run_trial(const std::string& source, const std::vector<std::string>& words, const std::string& script,
                std::chrono::milliseconds patience) {
  try {
    return Watch(words, script).run(patience);
  } catch (const base::Error& error) {
    const std::string text = std::string(error.what()).substr(error.room().size() + 3);
    throw base::Error(error.room(), base::concat(source, ": ", text));
  }
}

}  // namespace metroplex::megatron
