// Conditions and "case" on the output of programs that a trial does not run.
#include "megatron/launch_script.h"

#include "support/launch_scripts.h"

namespace metroplex::megatron::launch_branches_test {

using test::LaunchScripts;
using Words = std::vector<std::string>;

static const char* const kQuery = "X=$(scontrol show config); ";
static const char* const kTrain = "\ntorchrun p.py --b 1 --v $V\n";

TEST_F(LaunchScripts, AreRefusedIfABranchReachesAFlag) {
  for (const std::string text : {"[[ $X != y ]] && V=1",
                                 "if [[ $X != \"big\" ]]; then V=1; fi",
                                 "[[ ! $X == y ]] && V=1",
                                 "[[ ! $X =~ ^y$ ]] && V=1",
                                 "[[ $X =~ ^y ]] && V=1",
                                 "[[ $(scontrol show x) != y ]] && V=1",
                                 "[[ \"$(scontrol show x | cut -d' ' -f1)\" != y ]] && V=1",
                                 "[[ -n $X ]] && V=1",
                                 "[[ -z $X ]] && V=1",
                                 "[[ $X -gt 4 ]] && V=1",
                                 "[ \"$X\" -gt 4 ] && V=1",
                                 "if test \"$X\" -le 4; then V=1; fi",
                                 "[ \"$X\" != y ] && V=1",
                                 "A=1; if [[ $A == 1 && $X != y ]]; then V=1; fi",
                                 "[[ ${X,,} != h100 ]] && V=1",
                                 "[[ ${X:0:1} != h ]] && V=1",
                                 "A=($(scontrol show x)); [[ ${A[0]} != h ]] && V=1",
                                 "A=b; if [[ $A == b ]]; then [[ $X != y ]] || V=1; fi",
                                 "case $X in *H100*) V=1 ;; esac",
                                 "case $X in a) ;; b) V=1 ;; esac",
                                 "case \"$X\" in\n  # a comment\n  a|c)\n    A=2 ;;\n  *b*) V=1 ;;\n  *) ;;\nesac",
                                 "case $(scontrol show y) in a) ;; [bB]*) V=1 ;; esac",
                                 "f() { case $X in a) ;; d) V=1 ;; esac; }; f",
                                 "if [[ $X == *a* ]]; then :; elif [[ $X == *b* ]]; then V=1; fi",
                                 "if [ \"$X\" = a ]; then :; elif [ \"$X\" = b ]; then V=1; fi",
                                 "f() { [[ $1 == y ]] && V=1; }; f $X",
                                 "export X; V=$(bash -c '[[ $X != y ]] && echo 1')",
                                 "[[ -n $X ]] || exit 1; V=${X:0:3}",
                                 "echo 7 > f; sed -i s/7/8/ f; X=$(cat f); V=${X:0:3}",
                                 "V=${X//[!0-9]/}",
                                 "V=${X:0:3}",
                                 "V=${X: -2}",
                                 "V=${#X}"}) {
    const std::string error = refused(kQuery + text + kTrain);
    EXPECT_EQ(error.find("[config] run.sh: depends on the output of a program: --v ("), 0u) << text << error;
    EXPECT_NE(error.find("scontrol in line 1"), std::string::npos) << text << error;
  }
}

TEST_F(LaunchScripts, AreReadIfNoBranchReachesAFlag) {
  for (const std::string text :
       {"[[ $X != y ]] && echo hi", "[[ $X != y ]] && { echo bad; exit 1; }",
        "[[ $X == y ]] || { echo bad; exit 1; }", "[[ $X -gt 4 ]] && echo many", "[ \"$X\" -gt 4 ] && echo many",
        "case $X in a) echo a ;; b) export NCCL_DEBUG=1 ;; *) echo none ;; esac",
        "case $X in a) exit 1 ;; b) exit 2 ;; esac", "[[ -n ${X+x} ]] && V=3",
        "for i in 1 2 3; do [[ $X != $i ]] && echo $i; done"}) {
    const LaunchScript script = read("V=3; " + (kQuery + text) + kTrain);
    EXPECT_EQ(script.flags, (Words{"--b", "1", "--v", "3"})) << text;
    EXPECT_EQ(script.note, "") << text;
  }
  // Weights, data and losses do not depend on these flags.
  EXPECT_EQ(
      read(std::string(kQuery) + "[[ $X != y ]] && F=--log-throughput\ntorchrun p.py --a 1 --wandb-exp-name $X $F\n")
          .flags.at(1),
      "1");
}

// The trial reads a condition before bash evaluates it.
TEST_F(LaunchScripts, EvaluateConditionsOnce) {
  for (const std::string text :
       {"n=0; while [[ $((n++)) -lt 3 ]]; do V+=x; done", "n=2; case $((n++)) in 2) ;; esac; [[ $n == 3 ]] && V=xxx",
        "n=1; X=$(scontrol show x); [[ $((n++)) == 1 && $X == y ]]; [[ $n == 2 ]] && V=xxx"}) {
    EXPECT_EQ(read(text + "\ntorchrun p.py --v $V\n").flags, (Words{"--v", "xxx"})) << text;
  }
}

TEST_F(LaunchScripts, NameABranchThatCannotBeTried) {
  for (const auto& [text, command] : {std::pair("f() { [[ $1 != y ]] && V=1; }; f $X", "[[ $1 != y ]]"),
                                      std::pair("readonly X; [[ $X != y ]] && V=1", "[[ $X != y ]]"),
                                      std::pair("f() { case $1 in a) V=1 ;; esac; }; f $X", "case $1 in")}) {
    const std::string note = read("V=1; " + (kQuery + std::string(text)) + kTrain).note;
    EXPECT_NE(note.find("the branch at `" + std::string(command)), std::string::npos) << text << note;
    EXPECT_NE(note.find("scontrol in line 1 of run.sh"), std::string::npos) << text << note;
  }
}

}  // namespace metroplex::megatron::launch_branches_test
