#include "megatron/trial.h"

#include <cerrno>
#include <initializer_list>
#include <utility>

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

namespace metroplex::megatron {
namespace {

// Harmless whatever their arguments.
constexpr const char* kAllowed[] = {
    // open files
    "read", "readv", "pread64", "write", "writev", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "lseek",
    "pipe", "pipe2", "poll", "ppoll", "select", "pselect6", "getdents", "getdents64",
    // looking at paths
    "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2",
    "readlink", "readlinkat", "getcwd", "chdir", "fchdir", "umask",
    // memory
    "munmap", "mprotect", "mremap", "brk", "madvise",
    // signals of its own, waiting for its children, ending
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigpending", "rt_sigtimedwait",
    "sigaltstack", "wait4", "waitid", "exit", "exit_group", "restart_syscall", "pause", "alarm", "setitimer",
    "getitimer",
    // who and where am I
    "getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getresuid", "getresgid",
    "getpgrp", "getpgid", "getsid", "uname", "sysinfo", "getrlimit", "getrusage", "getpriority", "sched_yield",
    "times", "time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "getrandom",
    // what the C library asks at a start
    "futex", "set_tid_address", "set_robust_list", "get_robust_list", "rseq", "arch_prctl"};

// Signals and job control would leave the process group that ends with the trial.
constexpr const char* kForbidden[] = {"kill", "tkill", "tgkill", "setpgid", "setsid", "socket", "socketpair"};

using Comparisons = std::initializer_list<scmp_arg_cmp>;

class Rules {
 public:
  explicit Rules(scmp_filter_ctx filter) : filter_(filter) {}
  bool ok() const { return ok_; }
  // Rules with several comparisons hold where all of them do.
  void add(uint32_t action, const char* name, Comparisons comparisons = {}) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR || number < 0) return;  // not of this architecture
    ok_ = ok_ && seccomp_rule_add_array(filter_, action, number, static_cast<unsigned>(comparisons.size()),
                                        comparisons.begin()) == 0;
  }

 private:
  scmp_filter_ctx filter_;
  bool ok_ = true;
};

// Also O_RDONLY | O_TRUNC truncates, and O_RDONLY | O_CREAT makes a file.
void ask_for_opens_that_change(Rules& rules) {
  constexpr scmp_datum_t kChanges = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  const std::pair<const char*, unsigned> calls[] = {{"open", 1}, {"openat", 2}};
  for (const auto& [name, at] : calls) {
    rules.add(SCMP_ACT_ALLOW, name, {SCMP_CMP(at, SCMP_CMP_MASKED_EQ, kChanges, 0)});
    for (const scmp_datum_t bit : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC})
      rules.add(SCMP_ACT_NOTIFY, name, {SCMP_CMP(at, SCMP_CMP_MASKED_EQ, bit, bit)});
  }
  rules.add(SCMP_ACT_NOTIFY, "creat");
}

// No memory is shared with another process or thread, so what we read of a caller stays as we read it.
void separate_memories(Rules& rules) {
  constexpr scmp_datum_t kFork = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID | CSIGNAL;
  rules.add(SCMP_ACT_NOTIFY, "clone", {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, 0xffffffffu & ~kFork, 0)});
  rules.add(SCMP_ACT_NOTIFY, "fork");
  rules.add(SCMP_ACT_ALLOW, "mmap", {SCMP_CMP(3, SCMP_CMP_MASKED_EQ, MAP_SHARED, 0)});
  rules.add(SCMP_ACT_ALLOW, "mmap", {SCMP_CMP(3, SCMP_CMP_MASKED_EQ, MAP_SHARED | MAP_ANONYMOUS, MAP_SHARED)});
}

}  // namespace

scmp_filter_ctx make_trial_filter(int hand_over) {
  // ENOSYS is what the C library falls back on; clone3 and openat2, whose flags lie in memory, are among these.
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
  if (filter == nullptr) return nullptr;
  Rules rules(filter);
  for (const char* name : kAllowed) rules.add(SCMP_ACT_ALLOW, name);
  for (const char* name : kForbidden) rules.add(SCMP_ACT_ERRNO(EPERM), name);
  rules.add(SCMP_ACT_NOTIFY, "execve");
  ask_for_opens_that_change(rules);
  separate_memories(rules);
  for (const scmp_datum_t question : {TCGETS, FIONREAD, TIOCGWINSZ, TIOCGPGRP})
    rules.add(SCMP_ACT_ALLOW, "ioctl", {SCMP_CMP(1, SCMP_CMP_EQ, question, 0)});
  rules.add(SCMP_ACT_ALLOW, "prlimit64", {SCMP_CMP(2, SCMP_CMP_EQ, 0, 0)});  // to ask, not to set
  rules.add(SCMP_ACT_ALLOW, "sendmsg", {SCMP_CMP(0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(hand_over), 0)});
  if (rules.ok()) return filter;
  seccomp_release(filter);
  return nullptr;
}

}  // namespace metroplex::megatron
