#include "data/index_cache.h"

#include <atomic>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/scratch.h"

namespace metroplex::data::index_cache_test {
namespace {

IndexArrays some_arrays() {
  IndexArrays arrays;
  arrays.add("numbers", std::vector<int64_t>{3, 1, 2});
  arrays.add("pairs", std::vector<int32_t>{1, 2, 3, 4}, {2, 2});
  return arrays;
}

bool is_right(const IndexCache::Entry& entry) {
  const auto numbers = entry.array<int64_t>("numbers");
  return numbers.size() == 3 && numbers[0] == 3 && numbers[2] == 2 && entry.array<int32_t>("pairs").size() == 4;
}

std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().string());
  return names;
}

TEST(IndexCache, BuildsOnceAndFindsItAgain) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  const IndexCache cache(disk, scratch / "cache");
  EXPECT_TRUE(cache.get("x", "description\n", some_arrays).built);
  const auto again = cache.get("x", "description\n", some_arrays);
  EXPECT_FALSE(again.built);
  EXPECT_TRUE(is_right(again));
  EXPECT_TRUE(cache.get("x", "another description\n", some_arrays).built);
}

TEST(IndexCache, BuildsOnceWhenThreadsRace) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  std::atomic<int> builds{0}, right{0};
  std::vector<std::thread> ranks;
  for (int i = 0; i < 8; ++i) {
    ranks.emplace_back([&] {
      const auto entry = IndexCache(disk, scratch / "cache").get("x", "description\n", [&] {
        ++builds;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        return some_arrays();
      });
      right += is_right(entry);
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(builds, 1);
  EXPECT_EQ(right, 8);
}

TEST(IndexCache, BuildsOnceWhenProcessesRace) {
  const Scratch scratch;
  const std::string log = scratch.write("log", "");
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      files::PosixFileSystem disk;
      const auto entry = IndexCache(disk, scratch / "cache").get("x", "description\n", [&] {
        std::ofstream(log, std::ios::app) << "built\n";
        ::usleep(30000);
        return some_arrays();
      });
      ::_exit(is_right(entry) ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(read_file(log), "built\n");
}

TEST(IndexCache, BuildsAgainWhatIsAlteredCutOrMissing) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  const IndexCache cache(disk, scratch / "cache");
  cache.get("x", "description\n", some_arrays);
  int altered = 0;
  for (const std::string& path : files_in(scratch / "cache")) {
    if (path.ends_with(".lock")) continue;
    const std::string good = read_file(path);
    for (int way = 0; way < 3; ++way, ++altered) {
      std::string bad = good;
      if (way == 0) bad[bad.size() - 2] = static_cast<char>(bad[bad.size() - 2] ^ 4);
      if (way == 1) bad.resize(bad.size() / 2);
      std::filesystem::remove(path);  // the old pages may be mapped: never write into them
      if (way < 2) std::ofstream(path, std::ios::binary) << bad;
      const auto entry = cache.get("x", "description\n", some_arrays);
      EXPECT_TRUE(entry.built) << path << " way " << way;
      EXPECT_TRUE(is_right(entry));
      EXPECT_FALSE(cache.get("x", "description\n", some_arrays).built) << path << " way " << way;
    }
  }
  EXPECT_EQ(altered, 9);
}

TEST(IndexCache, KeepsTheArraysInMemoryWhereNothingCanBeWritten) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  const std::string file = scratch.write("file", "no directory");
  for (const std::string& directory : {std::string(), file + "/cache"}) {
    const auto entry = IndexCache(disk, directory).get("x", "description\n", some_arrays);
    EXPECT_TRUE(entry.built);
    EXPECT_TRUE(is_right(entry));
  }
}

TEST(IndexCache, LeavesNoTemporaryFiles) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  IndexCache(disk, scratch / "cache").get("x", "description\n", some_arrays);
  for (const std::string& path : files_in(scratch / "cache"))
    EXPECT_EQ(path.find(".part"), std::string::npos) << path;
}

}  // namespace
}  // namespace metroplex::data::index_cache_test
