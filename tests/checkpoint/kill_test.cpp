// The real disk and a real kill: a child saves in a loop and dies at a random moment; the parent checks the remaining
// files.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/directory.h"
#include "checkpoint/support.h"

namespace metroplex::checkpoint::kill_test {
namespace {

[[noreturn]] void save_for_ever(const std::string& root, int64_t iteration) {
  files::PosixFileSystem disk;
  for (;; ++iteration) {
    if (!save_model(disk, {.ranks = 1, .layout = 4, .iteration = iteration, .root = root}).ok) ::_exit(1);
    apply_retention(disk, root, {.keep_last = 2});
  }
}

TEST(Kill, ASaverKilledAtAnyMomentLeavesASoundLatest) {
  std::string pattern = (std::filesystem::temp_directory_path() / "metroplex_kill_XXXXXX").string();
  const std::string root = ::mkdtemp(pattern.data());
  files::PosixFileSystem disk;
  Alone alone;
  std::mt19937_64 random(9);
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(save_model(disk, {.ranks = 1, .layout = 4, .iteration = 1, .root = root}).ok);
  const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - before;
  int64_t newest = 1;
  for (int round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    if (child == 0) save_for_ever(root, newest + 1);
    std::this_thread::sleep_for(one_save * (static_cast<double>(random() % 4096) / 1024.0));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child could not save, round " << round;
    const Found found = open_newest(disk, root, alone);
    EXPECT_TRUE(found.problems.empty()) << found.problems[0];
    ASSERT_NE(found.reader, nullptr);
    EXPECT_GE(found.reader->manifest().iteration, newest) << "a finished save was lost";
    newest = found.reader->manifest().iteration;
    EXPECT_EQ(check_model(*found.reader, newest, 3), "");
  }
  // Kills between a save and its removals leave some more; the next removal deletes them.
  EXPECT_TRUE(apply_retention(disk, root, {.keep_last = 2}).problems.empty());
  EXPECT_EQ(list_checkpoints(disk, root).size(), 2u);
  EXPECT_GT(newest, 1) << "no child ever finished a save";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace metroplex::checkpoint::kill_test
