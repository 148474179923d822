// A run that goes back creates a branch: the newest checkpoint, retention and fallback follow the chain from
// `latest`, not the numbers.
#include "checkpoint/directory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/support.h"
#include "files/memory_file_system.h"
#include "support/folder.h"

namespace metroplex::checkpoint::history_test {
namespace {

using files::MemoryFileSystem;

std::vector<int64_t> iterations(const std::vector<CheckpointName>& names) {
  std::vector<int64_t> numbers;
  for (const auto& name : names) numbers.push_back(name.iteration);
  return numbers;
}

using Numbers = std::vector<int64_t>;

// Saves `iteration` with parent `parent`; 0: none, -1: as older versions did.
void save_from(files::FileSystem& disk, int64_t iteration, int64_t parent) {
  const auto name = parent < 0    ? std::optional<std::string>()
                    : parent == 0 ? ""
                                  : to_string(CheckpointName{parent, 1});
  ASSERT_TRUE(save_model(disk, {.iteration = iteration, .parent = name}).ok);
}

// 1 ... 10, then back to 5 and on to 6.
void branch(files::FileSystem& disk) {
  for (int64_t i = 1; i <= 10; ++i) save_from(disk, i, i - 1);
  save_from(disk, 6, 5);
}

History history(files::FileSystem& disk, size_t most = 100) {
  return read_history(disk, "/ckpt", list_checkpoints(disk, "/ckpt"), *read_latest(disk, "/ckpt").name, most);
}

TEST(History, FollowsTheChainAndKnowsTheBranchesThatWereLeft) {
  MemoryFileSystem disk;
  branch(disk);
  EXPECT_EQ(iterations(history(disk).past), (Numbers{6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(iterations(history(disk).left), (Numbers{10, 9, 8, 7}));
  save_from(disk, 12, 6);  // the other branch is in between
  EXPECT_EQ(history(disk).past.at(1), (CheckpointName{6, 2})) << "a branch's own 6, not the first one";
  EXPECT_EQ(iterations(history(disk).left), (Numbers{10, 9, 8, 7}));
  EXPECT_EQ(iterations(history(disk, 2).past), (Numbers{12, 6}));
  EXPECT_EQ(iterations(history(disk, 2).older), (Numbers{5, 4, 3, 2, 1}));
  EXPECT_EQ(iterations(history(disk, 2).left), (Numbers{10, 9, 8, 7}));
}

TEST(History, OfCheckpointsThatDoNotSayIsTheOrderOfTheirNumbers) {
  MemoryFileSystem disk;
  for (int64_t i = 10; i <= 40; i += 10) save_from(disk, i, -1);
  save_from(disk, 20, -1);
  EXPECT_EQ(iterations(history(disk).past), (Numbers{20, 10}));
  EXPECT_EQ(iterations(history(disk).left), (Numbers{40, 30}));
}

TEST(History, OfAChainWithAHoleGoesOnBelowIt) {
  MemoryFileSystem disk;
  for (const int64_t i : {4, 8, 12}) save_from(disk, i, i - 4);
  for (const int64_t i : {9, 10}) save_from(disk, i, i == 9 ? 8 : 9);  // back to 8
  remove_checkpoint(disk, "/ckpt", {9, 1});
  EXPECT_EQ(iterations(history(disk).past), (Numbers{10, 8, 4}));
  EXPECT_EQ(iterations(history(disk).left), (Numbers{12}));
}

TEST(History, OfARunFromAnotherFolderEndsWithItsFirst) {
  MemoryFileSystem disk;
  save_from(disk, 3, -1);
  save_from(disk, 7, 0);
  save_from(disk, 8, 7);
  EXPECT_EQ(iterations(history(disk).past), (Numbers{8, 7}));
  EXPECT_EQ(iterations(history(disk).left), (Numbers{3}));
}

TEST(Retention, KeepsTheNewestTheMultiplesAndWhatLatestNames) {
  const History straight{{{50, 1}, {40, 1}, {30, 1}, {20, 1}, {10, 1}}, {}, {}};
  EXPECT_TRUE(to_remove(straight, {}).empty());
  EXPECT_EQ(iterations(to_remove(straight, {.keep_last = 2})), (Numbers{30, 20, 10}));
  EXPECT_EQ(iterations(to_remove(straight, {.retain_interval = 20})), (Numbers{30, 10}));
  const History gone_back{{{20, 1}, {10, 1}}, {{50, 1}, {40, 1}, {30, 1}}, {}};
  EXPECT_EQ(iterations(to_remove(gone_back, {.keep_last = 1})), (Numbers{50, 40, 30, 10}));
  EXPECT_EQ(iterations(to_remove(gone_back, {.keep_last = 1, .retain_interval = 20})), (Numbers{50, 30, 10}));
  MemoryFileSystem disk;
  for (int64_t i = 10; i <= 40; i += 10) save_from(disk, i, -1);
  EXPECT_TRUE(apply_retention(disk, "/ckpt", {.keep_last = 2}).problems.empty());
  EXPECT_EQ(iterations(list_checkpoints(disk, "/ckpt")), (Numbers{30, 40}));
  disk.flip_bit("/ckpt/latest", 3);
  EXPECT_TRUE(apply_retention(disk, "/ckpt", {.keep_last = 1}).problems.empty());
  EXPECT_EQ(list_checkpoints(disk, "/ckpt").size(), 2u) << "nothing is removed while `latest` is unreadable";
}

TEST(Retention, CountsBackFromLatestAndNamesTheBranchItRemoves) {
  MemoryFileSystem disk;
  branch(disk);
  const RetentionResult result = apply_retention(disk, "/ckpt", {.keep_last = 2});
  EXPECT_TRUE(result.problems.empty());
  EXPECT_EQ(iterations(list_checkpoints(disk, "/ckpt")), (Numbers{5, 6}));
  EXPECT_EQ(iterations(result.removed_branch), (Numbers{10, 9, 8, 7}));
  save_from(disk, 7, 6);
  EXPECT_TRUE(apply_retention(disk, "/ckpt", {.keep_last = 2}).removed_branch.empty());
  EXPECT_EQ(iterations(list_checkpoints(disk, "/ckpt")), (Numbers{6, 7}));
}

TEST(Fallback, GoesToThePastBeforeItGoesToABranchThatWasLeft) {
  for (const int64_t on : {6, 12}) {
    MemoryFileSystem disk;
    branch(disk);
    if (on == 12) save_from(disk, 12, 5);
    Alone alone;
    Numbers used;
    for (;;) {
      const Found found = open_newest(disk, "/ckpt", alone);
      used.push_back(found.reader->manifest().iteration);
      EXPECT_EQ(found.problems.size(), used.size() - 1 + (used.back() > 6 && used.size() > 1 ? 1 : 0));
      if (used.back() > 6 && used.size() > 1) {
        EXPECT_NE(found.problems.back().find("branch"), std::string::npos) << found.problems.back();
        break;
      }
      const std::string file = found.reader->directory() + "/rank_00000.safetensors";
      disk.flip_bit(file, 8 * (disk.read(file).size() - 3));
    }
    EXPECT_EQ(used, on == 6 ? (Numbers{6, 5, 4, 3, 2, 1, 10}) : (Numbers{12, 5, 4, 3, 2, 1, 10}));
  }
}

// A checkpoint moved to an archive and replaced by a link, and leftovers that are links.
TEST(History, RetentionAndSweepingRemoveALinkAndNotTheArchiveBehindIt) {
  namespace fs = std::filesystem;
  const test::Folder folder;
  files::PosixFileSystem disk;
  const std::string root = folder.at("ckpt"), archive = folder.at("archive");
  const auto save_here = [&](int64_t iteration) {
    ASSERT_TRUE(save_model(disk, {.iteration = iteration, .root = root}).ok);
  };
  save_here(1);
  fs::rename(root + "/iter_0000001", archive);
  fs::create_directory_symlink(archive, root + "/iter_0000001");
  fs::create_directory_symlink(archive, root + "/.tmp-x");
  fs::create_directory_symlink(archive, root + "/.delete-iter_0000001");
  const std::vector<std::string> kept = disk.list(archive);
  disk.make_directory(root + "/.delete-iter_0000003");
  disk.replace_file(root + "/.delete-iter_0000003/manifest.json", "half deleted");
  save_here(2);
  EXPECT_FALSE(disk.exists(root + "/.tmp-x"));
  EXPECT_FALSE(disk.exists(root + "/.delete-iter_0000003"));
  ASSERT_EQ(disk.list(archive), kept) << "the sweep followed a link";
  EXPECT_TRUE(apply_retention(disk, root, {1, 0}).problems.empty());
  EXPECT_EQ(iterations(list_checkpoints(disk, root)), (Numbers{2}));
  EXPECT_EQ(disk.list(archive), kept) << "the retention followed a link";
}

}  // namespace
}  // namespace metroplex::checkpoint::history_test
