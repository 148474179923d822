// The functions that emulate small programs in a trial: each prints its program's output and returns its status
// (reference: bash outside of any trial), or reports that it cannot.
#include "megatron/launch_script.h"

#include <array>
#include <cstdio>
#include <memory>

#include "support/launch_scripts.h"

namespace metroplex::megatron::launch_tools_test {

using test::LaunchScripts;
using Words = std::vector<std::string>;

static std::string run_and_read(const std::string& text) {
  std::ofstream("real.sh") << text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("bash real.sh", "r"), pclose);
  std::string out;
  std::array<char, 256> part{};
  while (pipe != nullptr && fgets(part.data(), part.size(), pipe.get()) != nullptr) out += part.data();
  return out;
}

// Appends the status, so that no newline before it is lost.
static std::string with_status(const std::string& command) {
  return "\"$(" + command + " 2> /dev/null; echo \"[$?]\")\"";
}

static void expect_same(const Words& commands) {
  std::string trial = "torchrun p.py", real;
  for (const std::string& command : commands) {
    trial += " \\\n  --a " + with_status(command);
    real += "printf '%s\\1' " + with_status(command) + "\n";
  }
  std::ofstream("run.sh") << trial << "\n";
  std::istringstream before(run_and_read(real));  // an hour may end in between
  const LaunchScript script = read_launch_script("run.sh", {});
  std::istringstream after(run_and_read(real));
  ASSERT_EQ(script.flags.size(), 2 * commands.size());
  for (size_t i = 0; i < commands.size(); ++i) {
    std::string answer, later;
    ASSERT_TRUE(std::getline(before, answer, '\1') && std::getline(after, later, '\1'));
    EXPECT_EQ(script.flags[2 * i + 1], script.flags[2 * i + 1] == later ? later : answer) << commands[i];
  }
}

static const char* const kLines = "printf 'b 2\\na,1,x\\n\\n  two words\\nB:q:r:\\nlast' | ";

TEST_F(LaunchScripts, AskSmallProgramsThatAnswerAsTheirOwn) {
  std::filesystem::create_directories("deep/er");
  std::filesystem::create_directory_symlink("deep/er", "link");
  write("one\ntwo two\nthree\n", "deep/file");
  std::filesystem::create_symlink("deep/file", "file_link");
  Words commands;
  for (const char* path : {"a/b", "/a", "a", "a//", "//", "///x", "a//b///", "''", "/a/b/c.sh", ".", "..", "a/..",
                           "'x y/z'", "-- -a/b", "a/-b"}) {
    commands.push_back(std::string("dirname ") + path);
    commands.push_back(std::string("basename ") + path);
  }
  for (const char* path : {".", "deep/../deep", "link", "link/..", "link/new", "new", "gone/new", "deep/file", "/",
                           "//", "/usr/bin", "''", "//new", "deep/er/", "./deep/./file", "-- deep"}) {
    for (const char* tool : {"realpath ", "readlink -f ", "realpath -e ", "readlink -e "})
      commands.push_back(tool + std::string(path));
  }
  for (const char* filter : {"cat",
                             "head",
                             "head -n 2",
                             "head -n2",
                             "head -1",
                             "head -n 0",
                             "tail",
                             "tail -n 2",
                             "tail -1",
                             "tail -n +3",
                             "tail -n +0",
                             "tail -n0",
                             "wc -l",
                             "wc -w",
                             "wc -c",
                             "tr b Z",
                             "tr a-z A-Z",
                             "tr -d 'a-c\\n'",
                             "tr '\\n' ' '",
                             "tr -s ' '",
                             "tr -s 'ow '",
                             "tr , '\\n'",
                             "tr abq xy",
                             "cut -d, -f2",
                             "cut -d ' ' -f 2",
                             "cut -d: -f1,3-",
                             "cut -d: -f -2",
                             "cut -c1-3",
                             "cut -f1",
                             "cut -c 2,5-",
                             "grep b",
                             "grep -c b",
                             "grep -qi b",
                             "grep -v b",
                             "grep -q zz",
                             "grep '^b.*2$'",
                             "grep -E '(a|q)'",
                             "grep -F .",
                             "grep -ic B",
                             "tr '[:lower:]' '[:upper:]'",
                             "tr -d '[:space:]'",
                             "cat - deep/file",
                             "tee /dev/null",
                             "head -n 1 | tr b c | cut -c1",
                             "cut -d: -f4",
                             "cut -d: -f3,1 | wc -c"})
    commands.push_back(kLines + std::string(filter));
  for (const char* command : {"basename /x/y.sh .sh",
                              "basename .sh .sh",
                              "basename y.sh z",
                              "basename a/b/ b",
                              "readlink deep/file",
                              "readlink deep",
                              "seq 3",
                              "seq 2 5",
                              "seq 10 -3 1",
                              "seq -s, 4",
                              "seq -s ' ' 2 2 7",
                              "seq 5 1",
                              "seq -2 1",
                              "seq -s, 3 1",
                              "nproc",
                              "hostname",
                              "hostname -s",
                              "uname",
                              "uname -s",
                              "uname -n",
                              "uname -r",
                              "whoami",
                              "id -u",
                              "id -un",
                              "id -u -n",
                              "cat deep/file",
                              "cat deep/file absent",
                              "cat gone",
                              "cat deep",
                              "wc -l deep/file",
                              "wc -l < deep/file",
                              "head -n 1 deep/file",
                              "tail -n 1 deep/file",
                              "cut -d' ' -f1 deep/file",
                              "cat < /dev/null",
                              "grep -c t deep/file",
                              "grep -q '' deep/file",
                              "wc -w < /dev/null",
                              "grep x absent",
                              "expr 2 + 3",
                              "expr 7 / 2",
                              "expr -7 % 3",
                              "expr 6 \\* 7",
                              "expr 3 - 3",
                              "expr 3 \\< 4",
                              "expr 4 = 5",
                              "expr 5 - -5",
                              "ls gone",
                              "/usr/bin/dirname a/b",
                              "command -p dirname a/b",
                              "command seq 2",
                              "printf 'a\\nb\\n' | /usr/bin/head -n 1",
                              "date +%Y-%m-%d",
                              "date '+%d.%b %% %j%%N'",
                              "date -u +%FT%H:%Z",
                              "date --utc +%y",
                              "date +%-m_%_d_%^a",
                              "date +",
                              "LC_ALL=C date | cut -c1-10",
                              "TZ=Asia/Tokyo date +%H%Z",
                              "date +%s%N | cut -c1-8"})
    commands.emplace_back(command);
  // A trial has a limit of seconds, so the commands are split into groups.
  for (auto at = commands.begin(); at != commands.end();) {
    const auto end = at + std::min<std::ptrdiff_t>(40, commands.end() - at);
    expect_same({at, end});
    at = end;
  }
}

TEST_F(LaunchScripts, NameTheProgramThatTheyAskForAFlag) {
  write("old\n", "file");
  std::filesystem::create_symlink("file", "link");
  for (const char* command : {"sed s/a/b/ file",
                              "awk '{print $2}' file",
                              "jq .x file",
                              "scontrol show hostnames",
                              "sort file",
                              "mktemp",
                              "dirname -z a",
                              "basename -a a b",
                              "realpath link",
                              "readlink link",
                              "readlink -m a",
                              "date -d yesterday +%F",
                              "date '+%(x)'",
                              "date -r file",
                              "seq 1 0.5 2",
                              "seq 08 10",
                              "head -c 3 file",
                              "head -n -1 file",
                              "tail -f file",
                              "wc -lw file",
                              "tr ab ba",
                              "tr -cd a-z",
                              "tr '[=a=]' b",
                              "cut -f2 --complement",
                              "cut -f 0",
                              "cut -d , -c 1",
                              "cut -f ,1",
                              "tr a-z '[:upper:]'",
                              "grep -v '' file",
                              "grep -E '*a' file",
                              "cut -d ab -f1",
                              "expr length abc",
                              "expr 1 / 0",
                              "expr 1 + 2 + 3",
                              "cat -n file",
                              "grep -P x file",
                              "grep -o x file",
                              "hostname -I",
                              "uname -a",
                              "id -g",
                              "ls",
                              "nproc --all",
                              "cat /proc/self/exe",
                              "getopt a: -a 1",
                              "python3 -c 'print(3)'",
                              "/usr/bin/sed p file",
                              "command -p sed p file",
                              "env date",
                              "bash -c 'sed p file'",
                              "git rev-parse --short HEAD"}) {
    const std::string text = command;
    std::string tool = text.substr(0, text.find(' '));
    if (text.find("sed") != std::string::npos) tool = "sed";
    for (const char* filter : {"", " | tr x y | cut -d' ' -f1 | head -n 1", " | grep -v zz | wc -l"}) {
      // In the file with the command, and in its first line.
      write("\n\nVALUE=v$(" + text + filter + ")\n", "part.sh");
      const std::string error = refused(". ./part.sh\ntorchrun p.py --b 1 --size \"$VALUE\" --c 2\n");
      EXPECT_EQ(error.find("[config] run.sh: "), 0u) << text << filter << error;
      EXPECT_NE(error.find(tool + " in line 3 of part.sh"), std::string::npos) << text << filter << error;
      EXPECT_NE(error.find("by hand"), std::string::npos) << error;
      const bool decides = tool == "getopt";
      EXPECT_EQ(error.find("--size (") != std::string::npos, !decides) << error;
      EXPECT_EQ(error.find("--b ("), std::string::npos) << error;
    }
    if (tool == "getopt") continue;
    EXPECT_EQ(read("VALUE=$(" + text + ")\n" + text + "\ntorchrun --nproc-per-node $VALUE p.py --a 1\n").flags,
              (Words{"--a", "1"}))
        << text;
  }
}

TEST_F(LaunchScripts, AreRefusedWhereAProgramDecidesTheirCourse) {
  const std::string train = "torchrun p.py --a 1\n";
  for (const std::string text :
       {"N=$(sinfo -h)\nW=$((N * 8))\n", "N=$(sinfo -h)\ntorchrun p.py --a $((N * 8))\n",
        "N=$(sinfo -h | cut -f1)\ndeclare -i W=N/2\n", "N=$(sinfo -h)\nA=(1 2)\nW=${A[N]}\n",
        "python gen.py > vars.sh\n. ./vars.sh\n", "eval \"$(jq -r .x file)\"\n", "source <(python gen.py)\n",
        "cd $(sed p x)\n", ". $(sed p x)/model.sh\n",
        "O=$(getopt -o a: -- \"$@\")\neval set -- \"$O\"\nwhile true; do case $1 in --) break ;; *) shift ;; esac; "
        "done\n"}) {
    const std::string error = refused(text + train);
    EXPECT_NE(error.find("its behavior depends on the output or status of a program"), std::string::npos)
        << text << error;
    EXPECT_NE(error.find("in line 1 of run.sh"), std::string::npos) << text << error;
  }
  EXPECT_NE(refused("if [ -z \"$(nosuch)\" ]; then torchrun p.py --a 1; fi\n").find("nosuch in line 1 of run.sh"),
            std::string::npos);
  EXPECT_EQ(read(train + "grep -oP 'loss: .*' log | tail -n 1\n").flags, (Words{"--a", "1"}));
}

TEST_F(LaunchScripts, NameTheFlagThatDependsOnAnAssumption) {
  for (const std::string text :
       {"GPUS=$(nvidia-smi -L | wc -l); V=$((GPUS*4))",
        "V=$(nvidia-smi --list-gpus | grep -c GPU)",
        "GPUS=$(nvidia-smi --query-gpu=count --format=csv,noheader | head -n 1); V=$((8 * GPUS))",
        "GPUS=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l); [ $GPUS -ge 8 ] && V=1 || V=2",
        "GPUS=$(nvidia-smi -L | wc -l); if [ $GPUS -gt 8 ]; then V=1; fi",
        "V=$(rocm-smi | grep GPU | wc -l)",
        "V=$(nvidia-smi -L | wc -l); V=${V:-3}",
        "nvidia-smi -L > gpus; V=$(wc -l < gpus)",
        "GPUS=$(nvidia-smi -L | wc -l); V=$((GPUS / 8))",
        "nvidia-smi | grep -q H100 && V=1 || V=2",
        "if nvidia-smi -L | grep -qE 'A100|H100'; then V=1; fi",
        "NODES=($(scontrol show hostnames x)); V=${#NODES[@]}",
        "V=0; for h in $(scontrol show hostnames x); do V=$((V+1)); done",
        "V=$(scontrol show hostnames x | wc -l)",
        "N=$(sinfo -h | wc -w); V=$((N*2))",
        "N=$(sinfo -h | wc -l); [ $N -gt 4 ] && V=1",
        "[ -n \"$(lspci)\" ] && V=1",
        "[[ $(nvidia-smi -L) == *H100* ]] && V=1 || V=2",
        "GPU=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1); [[ \"$GPU\" =~ H100 ]] && V=1",
        "GPU=$(nvidia-smi -L); case $GPU in *H100*) V=1 ;; *) V=2 ;; esac",
        "X=$(scontrol show config); [ \"$X\" = big ] && V=1",
        "X=$(scontrol show config); if [[ -n $A || $X == big ]]; then V=1; fi",
        "type nosuch > /dev/null 2>&1 && V=1 || V=2",
        "hash nosuch 2> /dev/null && V=1",
        "if grep -P x run.sh; then V=1; fi",
        "V=7; grep -o x run.sh && V=8",
        "command -v nosuch > /dev/null && V=1 || V=2",
        "V=$(ls /dev/nvidia[0-9]* | wc -l)",
        "V=$(python -c 'import torch; print(torch.cuda.device_count())')"}) {
    const std::string error = refused(text + "\ntorchrun p.py --b 1 --v $V --c 2\n");
    const std::string tool = text.find("-smi") != std::string::npos       ? "-smi in line 1"
                             : text.find("scontrol") != std::string::npos ? "scontrol in line 1"
                                                                          : " in line 1 of run.sh";
    EXPECT_EQ(error.find("[config] run.sh: depends on the output of a program: --v ("), 0u) << text << error;
    EXPECT_NE(error.find(tool), std::string::npos) << text << error;
    EXPECT_EQ(error.find("--c"), std::string::npos) << text << error;
    EXPECT_EQ(error.find("--b"), std::string::npos) << text << error;
    const LaunchScript script = read(text + "\ntorchrun --nproc_per_node $V p.py --b 1 --seed $RANDOM --d $$\n");
    EXPECT_EQ((Words{script.flags.begin(), script.flags.begin() + 3}), (Words{"--b", "1", "--seed"})) << text;
  }
}

// A check of the script that ends it does not affect flags.
TEST_F(LaunchScripts, AreReadIfAnAssumptionReachesNoFlag) {
  for (const char* text :
       {"GPUS=$(nvidia-smi -L | wc -l); if [ $GPUS -lt 8 ]; then echo few; exit 1; fi",
        "eval \"$(conda shell.bash hook)\"; conda activate x", "curl -o install.sh http://x; bash install.sh",
        "[[ $(nvidia-smi -L) == *H100* ]] && export NCCL_DEBUG=INFO",
        "while [[ $(squeue) == *x* ]]; do sleep 1; done", "nvidia-smi -L | grep -q H100 || exit 1",
        "echo $(nvidia-smi | grep -o '[0-9]*MiB') > log.txt", "if grep -P x run.sh; then X=1; fi",
        "while nvidia-smi | grep -q python; do sleep 1; done", "DIR=$(mkdir -p d && pwd)",
        "X=$(grep -o x run.sh); echo $X | cut -b 1 | sed p | awk 1 | tr -c a b > log",
        "command -v jq && J=1; echo \"$(sed p x)\" | tee log"}) {
    EXPECT_EQ(read(std::string(text) + "\ntorchrun p.py --a 1 --seed $RANDOM\n").flags.size(), 4u) << text;
  }
  EXPECT_NE(refused("[ $(nvidia-smi -L | wc -l) -gt 8 ] || torchrun p.py --a 1\n").find("nvidia-smi in line 1"),
            std::string::npos);
}

// A training machine has the tools of its devices, and a launcher.
TEST_F(LaunchScripts, FindDeviceToolsAndLaunchers) {
  for (const char* test : {"command -v nvidia-smi", "type nvidia-smi", "hash nvidia-smi",
                           "[ -x \"$(command -v nvidia-smi)\" ]", "test -x /usr/bin/nvidia-smi", "type cat"}) {
    EXPECT_EQ(read(std::string(test) + " && A=1 || A=2\ntorchrun p.py --a $A\n").flags, (Words{"--a", "1"})) << test;
  }
  const LaunchScript script = read("$(which torchrun) --nproc_per_node=4 p.py --a 1\n");
  EXPECT_EQ(script.flags, (Words{"--a", "1"}));
  EXPECT_EQ(script.ranks, 4);
  EXPECT_NE(refused("torchrun p.py --a $(which jq)\n").find("--a (jq in line 1"), std::string::npos);
}

// A script's own functions and options do not interfere.
TEST_F(LaunchScripts, AskSmallProgramsWhateverTheyDefine) {
  EXPECT_EQ(read(R"SH(set -euo pipefail
shopt -s nullglob
set -f
IFS=:
readonly name=1 text=2 line=3 tool=4
date() { command date +%Y; }
cd() { command cd "$@"; }
log() { echo "$(date) $*"; }
printf() { echo mine; }
log start
cd /
YEAR=$(date)
torchrun p.py --a $(dirname x/y) "$(seq 2 | tr '\n' ,)" $(PATH=/usr/bin basename a/b) ${#YEAR} $(pwd)
)SH")
                .flags,
            (Words{"--a", "x", "1,2,", "b", "4", "/"}));
}

}  // namespace metroplex::megatron::launch_tools_test
