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

// Harmless with any arguments.
constexpr const char* kAllowed[] = {
    // open files
    "read", "readv", "pread64", "write", "writev", "close", "close_range", "dup", "dup2", "dup3", "lseek", "pipe",
    "pipe2", "poll", "ppoll", "select", "pselect6", "getdents", "getdents64",
    // path queries
    "fstat", "statx", "statfs", "fstatfs", "readlink", "readlinkat", "getcwd", "chdir", "fchdir", "umask",
    // memory
    "munmap", "mremap", "brk", "madvise",
    // own signals, waiting for children, exit
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigpending", "rt_sigtimedwait",
    "sigaltstack", "wait4", "waitid", "exit", "exit_group", "restart_syscall", "pause", "alarm", "setitimer",
    "getitimer",
    // process and system information
    "getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getresuid", "getresgid",
    "getpgrp", "getpgid", "getsid", "uname", "sysinfo", "getrlimit", "getrusage", "getpriority", "sched_yield",
    "times", "time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "getrandom",
    // startup of the C library
    "futex", "set_tid_address", "set_robust_list", "get_robust_list", "rseq", "arch_prctl"};

// Signals and job control could leave the process group of the trial.
constexpr const char* kForbidden[] = {"kill", "tkill", "tgkill", "setpgid", "setsid", "socket", "socketpair"};

using Comparisons = std::initializer_list<scmp_arg_cmp>;

class Rules {
 public:
  explicit Rules(scmp_filter_ctx filter) : filter_(filter) {}
  bool ok() const { return ok_; }
  // A rule with several comparisons requires all of them.
  void add(uint32_t action, const char* name, Comparisons comparisons = {}) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR || number < 0) return;  // does not exist on this architecture
    ok_ = ok_ && seccomp_rule_add_array(filter_, action, number, static_cast<unsigned>(comparisons.size()),
                                        comparisons.begin()) == 0;
  }

 private:
  scmp_filter_ctx filter_;
  bool ok_ = true;
};

// Files written by the script do not exist on disk, so every call with a path is passed on.
void notify_of_paths(Rules& rules) {
  for (const char* name :
       {"open", "openat", "creat", "stat", "lstat", "access", "faccessat", "faccessat2", "unlink", "unlinkat"})
    rules.add(SCMP_ACT_NOTIFY, name);
  constexpr scmp_datum_t kDescriptorItself = AT_EMPTY_PATH;
  rules.add(SCMP_ACT_ALLOW, "newfstatat", {SCMP_CMP(3, SCMP_CMP_EQ, kDescriptorItself, 0)});
  rules.add(SCMP_ACT_NOTIFY, "newfstatat", {SCMP_CMP(3, SCMP_CMP_NE, kDescriptorItself, 0)});
}

// F_SETOWN, F_SETSIG and O_ASYNC could make the kernel signal any process of the user.
void allow_descriptor_calls(Rules& rules) {
  for (const scmp_datum_t command : {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL})
    rules.add(SCMP_ACT_ALLOW, "fcntl", {SCMP_CMP(1, SCMP_CMP_EQ, command, 0)});
  rules.add(SCMP_ACT_ALLOW, "fcntl",
            {SCMP_CMP(1, SCMP_CMP_EQ, F_SETFL, 0), SCMP_CMP(2, SCMP_CMP_MASKED_EQ, O_ASYNC, 0)});
}

// Processes and threads share no memory, so the memory of a waiting caller does not change. Only the dynamic loader
// of bash may map code (trial.cpp).
void separate_memories(Rules& rules) {
  constexpr scmp_datum_t kFork = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID | CSIGNAL;
  rules.add(SCMP_ACT_NOTIFY, "clone", {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, 0xffffffffu & ~kFork, 0)});
  rules.add(SCMP_ACT_NOTIFY, "fork");
  const std::pair<uint32_t, scmp_datum_t> kinds[] = {{SCMP_ACT_ALLOW, 0}, {SCMP_ACT_NOTIFY, PROT_EXEC}};
  for (const auto& [action, code] : kinds) {
    const scmp_arg_cmp protection = SCMP_CMP(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, code);
    rules.add(action, "mprotect", {protection});
    rules.add(action, "mmap", {protection, SCMP_CMP(3, SCMP_CMP_MASKED_EQ, MAP_SHARED, 0)});
  }
  rules.add(SCMP_ACT_ALLOW, "mmap",
            {SCMP_CMP(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
             SCMP_CMP(3, SCMP_CMP_MASKED_EQ, MAP_SHARED | MAP_ANONYMOUS, MAP_SHARED)});
}

}  // namespace

scmp_filter_ctx make_trial_filter(int hand_over) {
  // The C library has fallbacks for ENOSYS. clone3 and openat2 get it, because their flags are in memory.
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
  if (filter == nullptr) return nullptr;
  Rules rules(filter);
  for (const char* name : kAllowed) rules.add(SCMP_ACT_ALLOW, name);
  for (const char* name : kForbidden) rules.add(SCMP_ACT_ERRNO(EPERM), name);
  rules.add(SCMP_ACT_NOTIFY, "execve");
  notify_of_paths(rules);
  allow_descriptor_calls(rules);
  separate_memories(rules);
  for (const scmp_datum_t question : {TCGETS, FIONREAD, TIOCGWINSZ, TIOCGPGRP})
    rules.add(SCMP_ACT_ALLOW, "ioctl", {SCMP_CMP(1, SCMP_CMP_EQ, question, 0)});
  rules.add(SCMP_ACT_ALLOW, "prlimit64", {SCMP_CMP(2, SCMP_CMP_EQ, 0, 0)});  // queries only
  rules.add(SCMP_ACT_ALLOW, "sendmsg", {SCMP_CMP(0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(hand_over), 0)});
  if (rules.ok()) return filter;
  seccomp_release(filter);
  return nullptr;
}

}  // namespace metroplex::megatron
