// Two runs and one folder: the error of the second names the owner of the lock, and a killed run holds no lock.
#include "checkpoint/folder_lock.h"

#include <gtest/gtest.h>

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/support.h"
#include "files/memory_file_system.h"
#include "support/folder.h"

namespace metroplex::checkpoint {
namespace {

std::string lock_refusal(files::FileSystem& disk, const std::string& folder) {
  try {
    const FolderLock lock(disk, folder);
  } catch (const base::Error& error) { return error.what(); }
  return "taken";
}

// Another process that holds the lock until it is killed.
class OtherRun {
 public:
  explicit OtherRun(const std::string& folder) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      files::PosixFileSystem disk;
      const FolderLock lock(disk, folder);
      [[maybe_unused]] const auto told = ::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~OtherRun() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(FolderLock, TheSecondRunHearsWhoHoldsTheFolderAndAKilledOneHoldsNothing) {
  const test::Folder scratch;
  files::PosixFileSystem disk;
  const std::string folder = scratch.at("ckpt");
  OtherRun other(folder);
  const std::string message = lock_refusal(disk, folder), process = "process " + std::to_string(other.pid());
  for (const std::string& word : {folder, process, this_process().user, this_process().host, std::string(" since ")})
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  EXPECT_EQ(disk.list(folder), std::vector<std::string>{kRunLock}) << "the second made something";
  other.kill();
  EXPECT_TRUE(parse_holder(disk.read(folder + "/.run"))) << "a killed run cannot wipe out its name";
  EXPECT_EQ(lock_refusal(disk, folder), "taken");
}

TEST(FolderLock, EndsWithTheRunAndLeavesNoEmptyFolder) {
  files::MemoryFileSystem disk;
  {
    const FolderLock lock(disk, "/a/ckpt");
    EXPECT_NE(lock_refusal(disk, "/a/ckpt"), "taken");
    ASSERT_TRUE(save_model(disk, {.iteration = 1, .root = "/a/ckpt"}).ok) << "the run itself saves";
  }
  EXPECT_EQ(disk.read("/a/ckpt/.run"), "");
  EXPECT_TRUE(other_entries(disk, "/a/ckpt").empty());
  EXPECT_EQ(lock_refusal(disk, "/a/ckpt"), "taken");
  EXPECT_EQ(lock_refusal(disk, "/b"), "taken");
  EXPECT_FALSE(disk.exists("/b")) << "nothing was saved there";
}

// try_lock always succeeds, as on a file system without locks.
class WithoutLocks final : public files::MemoryFileSystem {
 public:
  std::unique_ptr<files::FileLock> try_lock(const std::string& path) override {
    if (!exists(path)) create(path)->close();
    return std::make_unique<files::FileLock>();
  }
};

TEST(FolderLock, WithoutLocksTheProcessThatTheFileNamesIsLookedFor) {
  WithoutLocks disk;
  disk.make_directory("/ckpt");
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  Holder holder = this_process();
  holder.pid = child;
  const auto with = [&](const Holder& found) {
    disk.replace_file("/ckpt/.run", to_text(found));
    return lock_refusal(disk, "/ckpt");
  };
  holder.start_ticks = 0;  // unknown
  Holder reused = holder, elsewhere = holder;
  reused.start_ticks = 1;
  elsewhere.host += "-other";
  EXPECT_NE(with(holder).find("process " + std::to_string(child)), std::string::npos) << "it lives";
  EXPECT_EQ(with(reused), "taken") << "another process has its number";
  EXPECT_EQ(with(elsewhere), "taken") << "the owner is unknown, and the lock is free";
  EXPECT_EQ(with(this_process()), "taken") << "its own, of an earlier training of this process";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(with(holder), "taken") << "it does not exist";
  for (const char* torn : {"", "{", "[]", "{\"user\": 3}", "\xff\xfe"}) {
    disk.replace_file("/ckpt/.run", torn);
    EXPECT_EQ(lock_refusal(disk, "/ckpt"), "taken") << torn;
  }
  EXPECT_EQ(parse_holder(to_text(holder)), holder);
}

}  // namespace
}  // namespace metroplex::checkpoint
