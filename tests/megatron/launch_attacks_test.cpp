// Scripts that start programs, write files, end processes or flood resources of others: inside the filter none of it
// takes effect, and the training command is still found.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "megatron/launch_script.h"
#include "megatron/trial.h"
#include "support/launch_scripts.h"

namespace metroplex::megatron {

using test::LaunchScripts;

namespace {

std::string read_text(const std::string& name) {
  std::ifstream stream(name);
  return {std::istreambuf_iterator<char>(stream), {}};
}

int processes_with(const std::string& word) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    try {
      if (read_text(entry.path() / "cmdline").find(word) != std::string::npos) ++found;
    } catch (const std::ios_base::failure&) {}  // it ended during the read
  }
  return found;
}

bool all_ended(const std::string& word) {
  for (int tries = 0; tries < 100; ++tries, std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    if (processes_with(word) == 0) return true;
  }
  return false;
}

struct Attack {
  const char* name;
  const char* text;
};

}  // namespace

TEST_F(LaunchScripts, RunNoProgramWriteNoFileAndLoseNone) {
  const Attack attacks[] = {
      {"srun", "srun sh -c '/bin/rm -f canary; /usr/bin/touch made'"},
      {"docker", "docker run --rm image bash -c '/bin/rm canary'"},
      {"path", "PATH=$PWD/bin:/usr/bin:$PATH program; PATH=/usr/bin touch made"},
      {"command", "command -p touch made; command -p rm canary; command /bin/rm canary"},
      {"trap", "trap '/bin/rm canary; command -p touch made' EXIT"},
      {"group", "{ echo x; } > made; { echo x; } > canary; ( echo x ) >> canary"},
      {"loops",
       "for i in 1 2; do echo $i; done > made; while false; do :; done > canary; if true; then :; fi > canary"},
      {"function", "f() { echo x; } > canary; f"},
      {"exec", "builtin exec 5> canary; echo x >&5; builtin exec 6<> made; builtin exec 7>> canary; echo x >&7"},
      {"reopen", "builtin exec 5< canary; echo x > /dev/fd/5; echo x > /proc/self/fd/5"},
      {"execute", "(builtin exec /usr/bin/touch made); (builtin exec -a sh /bin/rm canary)"},
      {"awk", "awk 'BEGIN { print \"x\" > \"made\"; system(\"rm canary\"); print \"x\" | \"cat > made\" }'"},
      {"sort", "echo x | sort -o canary; sort -o made canary"},
      {"sed", "echo x | sed 'w canary'; sed -n '1e touch made' canary; command -p sed -i s/old/new/ canary"},
      {"tool", "export LD_PRELOAD=$PWD/x.so; date > made"},
      {"descriptors", "for n in {3..196}; do echo x 2> /dev/null >&$n; done"},
      {"history", "history -s x; history -w canary; history -a made"},
      {"noclobber", "set -o noclobber; echo x >| canary; echo x > made"},
      {"startup", "BASH_ENV=./bin/program /bin/bash -c 'rm canary'; ENV=./bin/program sh -i"},
      {"network", "echo x > /dev/tcp/127.0.0.1/9; echo x > /dev/udp/127.0.0.1/9"},
      {"limits", "ulimit -f unlimited; ulimit -t unlimited; echo x > made"},
      {"tee", "echo x | tee canary made; echo x | tee -a canary"},
      {"copies", "cp run.sh canary; mv canary made; touch made; ln -s canary made; rm -rf canary . $PWD"},
      {"stdout", "echo x > /dev/stdout; echo x > /dev/stderr; echo x > /proc/self/fd/1; echo x > /proc/$$/mem"},
      {"errors", "set -e; trap '/bin/rm canary' ERR RETURN; false; declare -F x"},
  };
  for (const auto& [name, text] : attacks) {
    write("old\n", "canary");
    std::filesystem::create_directories("bin");
    write("#!/bin/sh\necho ran > program_ran\n", "bin/program");
    std::filesystem::permissions("bin/program", std::filesystem::perms::all);
    const LaunchScript script = read(std::string(text) + "\ntorchrun p.py --a 1 --b 2\n");
    EXPECT_EQ(script.flags, (Words{"--a", "1", "--b", "2"})) << name;
    EXPECT_EQ(read_text("canary"), "old\n") << name;
    EXPECT_EQ(files(), (Words{"bin", "canary", "program", "run.sh"})) << name;
  }
}

// Below the functions that emulate programs: the kernel's response to any program that bash tries to start.
TEST_F(LaunchScripts, StartNoProgramButBash) {
  std::filesystem::create_symlink("/usr/bin/dirname", "linked");
  write("#!/bin/bash\n", "program");
  std::filesystem::permissions("program", std::filesystem::perms::all);
  for (const char* start : {"/usr/bin/dirname a/b",
                            "/bin/date",
                            "PATH=/usr/bin:/bin date",
                            "PATH=$PWD:/usr/bin linked a/b",
                            "command -p date",
                            "hash -p /usr/bin/date x; x",
                            "env date",
                            "/usr/bin/env date",
                            "(exec /usr/bin/date)",
                            "(exec -a bash date)",
                            "bash -c 'exit 0'",
                            "/bin/bash -c date",
                            "sh -c date",
                            "./program",
                            "./linked a/b",
                            "/proc/self/exe -c 'exit 0'",
                            "/lib64/ld-linux-x86-64.so.2 /usr/bin/date",
                            "x=$(date)",
                            "(date)",
                            "date | cat",
                            "coproc /usr/bin/date; wait $!",
                            "time /usr/bin/true",
                            "cat < <(date)",
                            "/usr/bin/true & wait $!"}) {
    const std::string text = std::string(start) + " && exit 0\nexit 7\n";
    const Trial trial = run_trial("run.sh", {"bash", "-c", text}, "");
    EXPECT_EQ(trial.status, 7) << start << "\n" << trial.printed;
    EXPECT_FALSE(trial.refused.empty() && trial.printed.find("exe") == std::string::npos) << start;
  }
  // Also not by a system call that bash does not make.
  const pid_t child = fork();
  if (child == 0) {
    const scmp_filter_ctx filter = make_trial_filter(0);
    if (filter == nullptr || seccomp_load(filter) != 0) _exit(3);
    char name[] = "true";
    char* words[] = {name, nullptr};
    syscall(SYS_execveat, AT_FDCWD, "/usr/bin/true", words, nullptr, 0);
    _exit(errno == ENOSYS ? 42 : 4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
}

// A script that circumvents the functions gets no output either, and an error reports it.
TEST_F(LaunchScripts, GetNoWordFromAProgram) {
  for (const char* start :
       {"builtin exec /usr/bin/date", "builtin command -p date", "unset -f date; PATH=/usr/bin builtin command date",
        "unset -f date command_not_found_handle; trap - DEBUG; PATH=/usr/bin; date", "trap - DEBUG; /usr/bin/date",
        "trap - DEBUG; unset -f date; hash -p /usr/bin/date date; date", "builtin command -p env date",
        "trap - DEBUG; /bin/bash -c date", "\"$(dirname /usr/bin/x)\"/date",
        "builtin command -p date | cut -d' ' -f1",
        "trap - DEBUG; /usr/bin/date | while read -r line; do echo $line; done"}) {
    const std::string error = refused("x=$(" + std::string(start) + " 2> /dev/null)\ntorchrun p.py --a y$x --b\n");
    EXPECT_EQ(error.find("[config] run.sh: depends on the output of a program: --a ("), 0u) << start << error;
  }
}

// A script reads no input of another process: of a named pipe, of a pipe through /proc, of a terminal.
TEST_F(LaunchScripts, ReadNoInputOfOthers) {
  ASSERT_EQ(mkfifo("fifo", 0600), 0);
  std::filesystem::create_symlink("fifo", "link");
  const int fifo = open("fifo", O_RDWR | O_NONBLOCK), terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_TRUE(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
  const std::string device = ptsname(terminal);
  const int input = open(device.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const std::string ours = "/proc/" + std::to_string(getpid()), pipe = "/fd/" + std::to_string(ends[0]);
  std::filesystem::create_symlink(ours + pipe, "link_to_pipe");
  const std::pair<std::string, int> streams[] = {{"fifo", fifo},
                                                 {"link", fifo},
                                                 {"$PWD/fifo", fifo},
                                                 {"/proc/self/cwd/fifo", fifo},
                                                 {ours + "/cwd/fifo", fifo},
                                                 {ours + pipe, ends[0]},
                                                 {"/dev/../proc/$PPID" + pipe, ends[0]},
                                                 {"link_to_pipe", ends[0]},
                                                 {device, input}};
  for (const auto& [name, from] : streams) {
    const int to = from == fifo ? fifo : from == input ? terminal : ends[1];
    ASSERT_EQ(::write(to, "secret\n", 7), 7) << name;
    for (const char* before : {"", "echo x > made\n"}) {  // without and with files of the trial
      EXPECT_EQ(read(before + std::string("IFS= read -r -t 1 x < ") + name + "\ntorchrun p.py --a y$x\n").flags,
                (Words{"--a", "y"}))
          << name << " " << before;
    }
    char text[8] = "";
    EXPECT_EQ(::read(from, text, sizeof text), 7) << name;
    EXPECT_STREQ(text, "secret\n") << name;
  }
  for (const int fd : {fifo, terminal, input, ends[0], ends[1]}) close(fd);
  EXPECT_EQ(read("exec 5< <(echo 1); read -r x < /dev/fd/5; read -r y < <(echo 2); read -r z <<< 3\n"
                 "echo 4 > fifo; read -r u < fifo; torchrun p.py --a $x $y $z $u\n")
                .flags,
            (Words{"--a", "1", "2", "3", "4"}));
}

// A writer that waits for a reader of its pipe keeps waiting.
TEST_F(LaunchScripts, OpenNoPipeOfOthers) {
  ASSERT_EQ(mkfifo("fifo", 0600), 0);
  const pid_t writer = fork();
  if (writer == 0) _exit(open("fifo", O_WRONLY) < 0);
  read("read -r -t 1 x < fifo; echo y >> fifo; torchrun p.py --a 1\n");
  int status = 0;
  EXPECT_EQ(waitpid(writer, &status, WNOHANG), 0);
  kill(writer, SIGKILL);
  waitpid(writer, &status, 0);
}

TEST_F(LaunchScripts, NameTheLimitOfOpenFiles) {
  EXPECT_EXIT(
      {
        rlimit few{};
        few.rlim_cur = few.rlim_max = 200;
        setrlimit(RLIMIT_NOFILE, &few);
        std::fputs(refused("torchrun p.py --a 1\n").c_str(), stderr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "run.sh: RLIMIT_NOFILE = 200: must be at least 264");
}

TEST_F(LaunchScripts, InheritNoDescriptorOfOurs) {
  const int ours = open("held", O_WRONLY | O_CREAT, 0600);
  ASSERT_GE(ours, 0);
  read("echo x >&" + std::to_string(ours) + "\ntorchrun p.py --a 1\n");
  EXPECT_EQ(read_text("held"), "");
  close(ours);
}

// As in a shell that sshd or another kind of program starts.
TEST_F(LaunchScripts, ReadNoStartupFiles) {
  write("torchrun other.py --b 2; exit\n", ".bashrc");
  EXPECT_EXIT(
      {
        setenv("HOME", folder_.c_str(), 1);
        setenv("SSH_CLIENT", "192.0.2.1 22 22", 1);
        unsetenv("SHLVL");
        const LaunchScript script = read("torchrun p.py --a 1\n");
        std::fprintf(stderr, "%s %s\n", script.program.c_str(), script.flags.at(0).c_str());
        std::_Exit(script.program == "p.py" && script.flags == Words{"--a", "1"} ? 0 : 1);
      },
      testing::ExitedWithCode(0), "p.py --a");
}

TEST_F(LaunchScripts, EndOnlyThemselves) {
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  EXPECT_NO_THROW(
      read("builtin kill -9 " + std::to_string(other) + "\nbuiltin kill -9 $PPID\ntorchrun p.py --a 1\n"));
  int status = 0;
  EXPECT_EQ(waitpid(other, &status, WNOHANG), 0);
  kill(other, SIGKILL);
  waitpid(other, &status, 0);
}

TEST_F(LaunchScripts, LeaveNoProcess) {
  write("while true; do :; done &\n(set -m; while true; do sleep 1; done &)\ntorchrun p.py --a 1\n",
        "loops_behind.sh");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(read_launch_script("loops_behind.sh", {}).flags, (Words{"--a", "1"}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_TRUE(all_ended("loops_behind.sh"));
}

TEST_F(LaunchScripts, EndWithTheProcessThatReadsThem) {
  write("while true; do :; done &\nwhile true; do :; done\n", "loops_for_ever.sh");
  const pid_t reader = fork();
  if (reader == 0) {
    try {
      read_launch_script("loops_for_ever.sh", {});
    } catch (...) {}
    _exit(0);
  }
  int in_a_row = 0;  // a process that bash starts first may end again
  for (int tries = 0; tries < 250 && in_a_row < 5; ++tries) {
    in_a_row = processes_with("loops_for_ever.sh") >= 2 ? in_a_row + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(in_a_row, 5);
  kill(reader, SIGKILL);
  waitpid(reader, nullptr, 0);
  EXPECT_TRUE(all_ended("loops_for_ever.sh"));
}

TEST_F(LaunchScripts, HaveLimits) {
  const std::string forks = refused("f() { f | f & }; f; wait\nwhile true; do (:); done\ntorchrun p.py --a 1");
  const bool limited =
      forks.find("processes") != std::string::npos || forks.find("GiB of memory") != std::string::npos;
  EXPECT_TRUE(limited) << forks;
  // Reads all output and stores only its last lines.
  EXPECT_EQ(read("for i in {1..200}; do printf '%1000d' 1; done; torchrun p.py --a 1").flags, (Words{"--a", "1"}));
  EXPECT_EQ(read("ulimit -v unlimited; ulimit -t 99; torchrun p.py --a $(ulimit -v) $(ulimit -t) $(ulimit -f)").flags,
            (Words{"--a", "1048576", "10", "1024"}));
}

// The first trial takes 1 s, the others loop.
TEST_F(LaunchScripts, LimitTheTimeOfAllTrials) {
  write(
      "x=$(tool)\n[[ $x != a ]] && echo; [[ $x != b ]] && echo\nread -t 1 y < <(while :; do :; done)\n"
      "while [[ $metroplex_trial != 0 ]]; do read -t 9 y < <(while :; do :; done); done\ntorchrun p.py --a 1\n",
      "loops_in_others.sh");
  const auto begin = std::chrono::steady_clock::now();
  const LaunchScript script = read_launch_script("loops_in_others.sh", {}, std::chrono::seconds(3));
  EXPECT_NE(script.note.find("the time limit of all trials was reached before each branch that depends on tool"),
            std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(LaunchScripts, LimitTheSumOfAllProcesses) {
  // Each process and its coprocess wait for each other, so they keep their memory and use no CPU time.
  const std::string error = refused(
      "trap - DEBUG\n"
      "hog() { printf -v x '%150000000s' 1; coproc { read -r; }; read -r -u \"${COPROC[0]}\"; }\n"
      "for i in {1..8}; do hog & done; wait\ntorchrun p.py --a 1\n");
  EXPECT_NE(error.find("more than 1 GiB of memory"), std::string::npos) << error;
  EXPECT_TRUE(all_ended(folder_.filename().string()));
  const std::string words =
      refused("trap - DEBUG; printf -v x '%100000s' 1\nfor i in {1..60}; do (builtin exec /bin/x \"$x\"); done\n");
  EXPECT_NE(words.find("bytes of commands"), std::string::npos) << words;
  EXPECT_NE(refused("for i in {1..600}; do : > f$i; done\ntorchrun p.py --a 1\n").find("512 files"),
            std::string::npos);
  EXPECT_EQ(read("read -r score < /proc/self/oom_score_adj; torchrun p.py --a $score\n").flags,
            (Words{"--a", "1000"}));
}

// A script can bring its own library. The library's code never runs.
TEST_F(LaunchScripts, LoadNoCode) {
  write(R"C(#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
__attribute__((constructor)) static void attack(void) {
  int ends[2];
  pipe(ends);
  fcntl(ends[0], F_SETOWN, getppid());
  fcntl(ends[0], F_SETSIG, SIGKILL);
  fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK);
  write(1, "the code runs\n", 14);
  write(ends[1], "x", 1);
}
)C",
        "x.c");
  if (std::system("cc -shared -fPIC -o x.so x.c 2> /dev/null") != 0) GTEST_SKIP() << "no compiler";
  for (const char* text : {"enable -f ./x.so x", "(enable -f ./x.so x)", "bash -c 'enable -f ./x.so x'",
                           "BASH_LOADABLES_PATH=. enable -f x.so x", "LD_PRELOAD=./x.so enable -f $PWD/x.so x"}) {
    const LaunchScript script =
        read(std::string("said=$(") + text + " 2>&1)\n[[ $said == *'code runs'* ]] && said=ran || said=refused\n" +
             text + "\ntorchrun p.py --a $said\n");
    EXPECT_EQ(script.flags, (Words{"--a", "refused"})) << text;
  }
}

namespace {

int error_in_filter(long number, long first, long second, long third, long fourth = 0) {
  const pid_t child = fork();
  if (child == 0) {
    const scmp_filter_ctx filter = make_trial_filter(0);
    if (filter == nullptr || seccomp_load(filter) != 0) _exit(255);
    close(seccomp_notify_fd(filter));  // calls that need an answer then fail with ENOSYS
    errno = 0;
    const long result = syscall(number, first, second, third, fourth, -1, 0);
    _exit(result < 0 && result >= -4095 ? errno : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_F(LaunchScripts, SendNoSignalAndMapNoCode) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const int command : {F_GETFD, F_GETFL}) EXPECT_EQ(error_in_filter(SYS_fcntl, ends[0], command, 0), 0);
  EXPECT_EQ(error_in_filter(SYS_fcntl, ends[0], F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(error_in_filter(SYS_fcntl, ends[0], F_DUPFD_CLOEXEC, 10), 0);
  EXPECT_EQ(error_in_filter(SYS_fcntl, ends[0], F_SETFL, O_ASYNC), ENOSYS);
  EXPECT_EQ(error_in_filter(SYS_fcntl, ends[0], F_SETFL, O_ASYNC | O_NONBLOCK), ENOSYS);
  for (const int command :
       {F_SETOWN, F_SETOWN_EX, F_SETSIG, F_GETOWN, F_SETLEASE, F_NOTIFY, F_SETLK, F_SETPIPE_SZ, F_ADD_SEALS})
    EXPECT_EQ(error_in_filter(SYS_fcntl, ends[0], command, getpid()), ENOSYS) << command;
  close(ends[0]);
  close(ends[1]);
  constexpr long kPrivate = MAP_PRIVATE | MAP_ANONYMOUS, kRead = PROT_READ;
  EXPECT_EQ(error_in_filter(SYS_mmap, 0, 4096, kRead, kPrivate), 0);
  EXPECT_EQ(error_in_filter(SYS_mmap, 0, 4096, kRead | PROT_EXEC, kPrivate), ENOSYS);
  EXPECT_EQ(error_in_filter(SYS_mprotect, 0, 0, kRead), 0);
  EXPECT_EQ(error_in_filter(SYS_mprotect, 0, 0, kRead | PROT_EXEC), ENOSYS);
}

TEST_F(LaunchScripts, TakeNoOptionOfALauncherForText) {
  for (const char* launcher :
       {"srun -c 8", "taskset -c 0-7", "srun -n1 -c 4 --cpu-bind=cores taskset -c 0",
        "srun bash -l -c 'torchrun p.py --a 1' -c", "sbatch -c 8 --wrap 'torchrun p.py --a 1' --"}) {
    const LaunchScript script = read(std::string(launcher) + " torchrun p.py --a 1\n");
    EXPECT_EQ(script.program, "p.py") << launcher;
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << launcher;
  }
}

TEST_F(LaunchScripts, ShellsWithOptionsAndArgumentsAreFollowed) {
  write("torchrun p.py --a $1\n", "inner.sh");
  for (const char* text : {"bash -euo pipefail -c 'torchrun p.py --a $1' name 1",
                           "docker run --name x image /bin/bash -lc 'torchrun p.py --a 1'", "srun bash inner.sh 1",
                           "srun bash -x inner.sh 1", "sbatch -N 2 inner.sh 1", "sbatch --wrap='torchrun p.py --a 1'",
                           "srun bash -c '/opt/bin/torchrun p.py --a 1 > log 2>&1'",
                           "{ torchrun p.py --a 1; } > log 2>&1", "PATH=/usr/bin:$PATH nohup p.py --a 1 &",
                           "command -p env X=1 p.py --a 1", "torchrun p.py --a 1 > >(tee log) 2>&1"}) {
    EXPECT_EQ(read(std::string(text) + "\n").flags, (Words{"--a", "1"})) << text;
  }
}

TEST_F(LaunchScripts, AreRefusedWhereThereIsNoFilter) {
  const pid_t child = fork();
  if (child == 0) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(seccomp), 0);
    seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prctl), 1, SCMP_A0(SCMP_CMP_EQ, 22, 0));
    if (seccomp_load(filter) != 0) _exit(3);
    const std::string error = refused("/usr/bin/touch made\n\ntorchrun \\\n p.py --a 1\n");
    const bool told = error.find("[config] run.sh: the system call filter") == 0 &&
                      error.find("directly") != std::string::npos && error.find("line 3 to 4") != std::string::npos;
    if (!told) std::fprintf(stderr, "%s\n", error.c_str());
    _exit(told ? 0 : 4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(files(), (Words{"run.sh"}));
}

}  // namespace metroplex::megatron
