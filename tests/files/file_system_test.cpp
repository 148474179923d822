#include "files/file_system.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "files/checksum.h"
#include "files/dtype.h"
#include "files/fault_file_system.h"
#include "files/memory_file_system.h"

namespace metroplex::files::file_system_test {
namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "metroplex_files_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  std::string path;
};

void put(FileSystem& disk, const std::string& path, const std::string& text, bool sync = false) {
  auto file = disk.create(path);
  file->write(text.data(), text.size());
  if (sync) file->sync();
  file->close();
}

void exercise(FileSystem& disk, const std::string& root) {
  disk.make_directories(root + "/a/b");
  EXPECT_TRUE(disk.is_directory(root + "/a/b"));
  put(disk, root + "/a/b/one", "first");
  put(disk, root + "/a/b/two", "");
  EXPECT_EQ(disk.list(root + "/a/b"), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(disk.read(root + "/a/b/one"), "first");
  EXPECT_EQ(disk.read(root + "/a/b/two"), "");
  disk.rename(root + "/a/b/one", root + "/a/b/two");
  EXPECT_EQ(disk.read(root + "/a/b/two"), "first");
  EXPECT_FALSE(disk.exists(root + "/a/b/one"));
  disk.replace_file(root + "/a/b/two", "second");
  EXPECT_EQ(disk.read(root + "/a/b/two"), "second");
  EXPECT_EQ(disk.list(root + "/a/b").size(), 1u) << "a temporary file was left";
  EXPECT_THROW(disk.remove(root + "/a"), base::Error) << "the directory is not empty";
  EXPECT_THROW(disk.map(root + "/nothing"), base::Error);
  EXPECT_THROW(disk.map(root + "/a"), base::Error);
  EXPECT_THROW(disk.list(root + "/nothing"), base::Error);
  EXPECT_THROW(disk.create(root + "/nothing/x"), base::Error);
  auto lock = disk.try_lock(root + "/lock");
  EXPECT_NE(lock, nullptr);
  EXPECT_EQ(disk.try_lock(root + "/lock"), nullptr);
  lock.reset();
  EXPECT_NE(disk.try_lock(root + "/lock"), nullptr);
  EXPECT_EQ(disk.canonical(root + "/a/./b/../b/"), disk.canonical(root + "/a/b"));
  EXPECT_EQ(disk.canonical(root + "/nothing/x/"), disk.canonical(root) + "/nothing/x");
  EXPECT_EQ(disk.canonical("/"), "/");
  EXPECT_EQ(disk.write_problem(root + "/a"), "");
  disk.remove_tree(root + "/a");
  EXPECT_FALSE(disk.exists(root + "/a"));
}

// Otherwise a folder may be missing after a power failure even if files in it were synced.
TEST(FileSystem, SyncsTheParentOfEveryNewDirectory) {
  class Recording final : public MemoryFileSystem {
   public:
    void sync_directory(const std::string& path) override {
      synced.push_back(path);
      MemoryFileSystem::sync_directory(path);
    }
    std::vector<std::string> synced;
  } disk;
  disk.make_directories("/a/b/c");
  EXPECT_EQ(disk.synced, (std::vector<std::string>{"/", "/a", "/a/b"}));
}

TEST(FileSystem, ThroughLinksAPathIsTheSameAndWhatIsNoDirectoryCannotBeWrittenIn) {
  TemporaryDirectory directory;
  PosixFileSystem disk;
  const std::string folder = directory.path + "/folder", link = directory.path + "/link";
  disk.make_directory(folder);
  std::filesystem::create_directory_symlink(folder, link);
  EXPECT_EQ(disk.canonical(link + "/new"), disk.canonical(folder) + "/new");
  EXPECT_NE(disk.canonical(directory.path + "/other"), disk.canonical(folder));
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(disk.canonical("new"), disk.canonical(here) + "/new");
  EXPECT_EQ(disk.write_time(folder + "/file"), 0);
  EXPECT_EQ(disk.write_problem(folder), "");
  put(disk, folder + "/file", "x");
  EXPECT_NE(disk.write_time(folder + "/file"), 0);
  EXPECT_EQ(disk.write_problem(folder + "/nothing"), "No such file or directory");
}

// Root has all permissions, and still cannot create files there.
TEST(FileSystem, WhereNothingCanBeMadeIsToldInAdvanceAndNothingIsLeftWhereItCan) {
  TemporaryDirectory directory;
  PosixFileSystem disk;
  EXPECT_NE(disk.write_problem("/proc"), "");
  const auto check = [&](const std::string& path) {
    try {
      disk.check_new_directory(path);
    } catch (const base::Error& error) { return std::string(error.what()); }
    return std::string();
  };
  EXPECT_EQ(check(directory.path + "/a/b"), "");
  EXPECT_EQ(disk.list(directory.path), std::vector<std::string>{});
  EXPECT_NE(check("/proc/a/b").find("'/proc/a/b' cannot be created: cannot write in /proc ("), std::string::npos);
  EXPECT_NE(check(directory.path).find("already exists; choose another directory"), std::string::npos);
  EXPECT_NE(check("").find("has no name"), std::string::npos);
}

TEST(FileSystem, ADirectoryIsMadeWholeAndNothingOfOthersIsRemovedForIt) {
  TemporaryDirectory directory;
  PosixFileSystem disk;
  const std::string path = directory.path + "/new", part = part_path(path);
  const auto make = [&] { disk.make_whole(path, [&](const std::string& at) { put(disk, at + "/file", "x"); }); };
  const auto stopped = [&](const std::string& at) {
    put(disk, at + "/half", "x");
    throw 1;  // as a crash: no cleanup
  };
  EXPECT_THROW(disk.make_whole(path, stopped), int);
  EXPECT_EQ(disk.read(part + "/half"), "x");
  make();  // replaces the leftovers of the crash
  EXPECT_EQ(disk.list(path), std::vector<std::string>{"file"});
  EXPECT_EQ(disk.list(directory.path), std::vector<std::string>{"new"});
  disk.remove_tree(path);
  disk.make_directories(part);
  make();  // replaces the leftovers of a crash before any write
  disk.remove_tree(path);
  const auto is_refused = [&] {
    try {
      make();
    } catch (const base::Error& error) {
      return std::string(error.what()).find("'" + part + "' already exists, and '") != std::string::npos;
    }
    return false;
  };
  disk.make_directories(part + "/precious");
  put(disk, part + "/precious/gold", "1");
  EXPECT_TRUE(is_refused());
  EXPECT_EQ(disk.read(part + "/precious/gold"), "1");
  disk.remove_tree(part);
  put(disk, part, "1");
  EXPECT_TRUE(is_refused());
  EXPECT_EQ(disk.read(part), "1");
}

TEST(FileSystem, ADirectoryIsMadeByOneProcessAtATime) {
  TemporaryDirectory directory;
  PosixFileSystem disk, other;
  const std::string path = directory.path + "/new";
  const auto refusal = [&] {
    try {
      other.make_whole(path, [&](const std::string& at) { put(other, at + "/file", "other"); });
    } catch (const base::Error& error) { return std::string(error.what()); }
    return std::string();
  };
  disk.make_whole(path, [&](const std::string& at) {
    put(disk, at + "/file", "x");
    EXPECT_NE(refusal().find("another run is writing '" + path + "'"), std::string::npos);
    other.make_whole(directory.path + "/second", [&](const std::string& part) { put(other, part + "/file", "y"); });
  });
  EXPECT_NE(refusal().find("'" + path + "' already exists"), std::string::npos);
  EXPECT_EQ(disk.read(path + "/file"), "x");
  EXPECT_EQ(disk.list(directory.path), (std::vector<std::string>{"new", "second"}));
}

// Each holder removes the file, which ends its lock; another process may have opened the file before.
TEST(FileSystem, TwoProcessesNeverHoldALockWhoseFileIsRemoved) {
  TemporaryDirectory directory;
  const std::string path = directory.path + "/lock";
  std::atomic<int> holders{0}, most{0};
  const auto take = [&] {
    PosixFileSystem disk;
    for (int taken = 0; taken < 1000;) {
      const auto lock = disk.try_lock(path);
      if (!lock) continue;
      ++taken;
      const int now = ++holders;
      if (now > most) most = now;
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // long enough for a second holder
      --holders;
      disk.remove_quietly(path);
    }
  };
  std::thread one(take), two(take), three(take);
  one.join();
  two.join();
  three.join();
  EXPECT_EQ(most, 1);
}

TEST(FileSystem, AnOutputGoesThroughLinksAndIntoPipes) {
  namespace fs = std::filesystem;
  TemporaryDirectory directory;
  PosixFileSystem disk;
  const std::string file = directory.path + "/file", link = directory.path + "/link", pipe = directory.path + "/pipe";
  disk.write_output(file, "one");
  EXPECT_EQ(disk.read(file), "one");
  fs::create_symlink("file", link);
  disk.write_output(link, "two");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(disk.read(file), "two");
  fs::remove(file);
  disk.write_output(link, "three");  // its target does not exist yet
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(disk.read(file), "three");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  disk.write_output(pipe, "four");
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 4);
  ::close(reader);
  EXPECT_EQ(std::string(got), "four");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_THROW(disk.write_output(directory.path, "five"), base::Error);
  EXPECT_EQ(disk.list(directory.path), (std::vector<std::string>{"file", "link", "pipe"}));
}

TEST(FileSystem, TheRealDiskAndTheOneInMemoryBehaveAlike) {
  TemporaryDirectory directory;
  PosixFileSystem real;
  exercise(real, directory.path);
  MemoryFileSystem memory;
  memory.make_directory("/r");
  exercise(memory, "/r");
}

TEST(FileSystem, RemovingATreeRemovesLinksAndNeverWhatTheyPointTo) {
  namespace fs = std::filesystem;
  TemporaryDirectory directory;
  PosixFileSystem disk;
  const std::string archive = directory.path + "/archive", tree = directory.path + "/tree",
                    link = directory.path + "/link";
  const auto archive_is_whole = [&] {
    return disk.read(archive + "/inner/two") == "2" && disk.read(archive + "/one") == "1";
  };
  disk.make_directories(archive + "/inner");
  put(disk, archive + "/one", "1");
  put(disk, archive + "/inner/two", "2");
  for (const char* end : {"", "/", "//"}) {
    fs::create_directory_symlink(archive, link);
    disk.remove_tree(link + end);
    EXPECT_FALSE(disk.exists(link)) << "'" << end << "'";
    ASSERT_TRUE(archive_is_whole()) << "'" << end << "'";
  }
  disk.make_directories(tree + "/a/b");
  put(disk, tree + "/a/.hidden", "h");
  fs::create_directory_symlink(archive, tree + "/a/folder");
  fs::create_directory_symlink("..", tree + "/a/b/up");
  fs::create_symlink(archive + "/one", tree + "/a/file");
  fs::create_symlink(directory.path + "/nowhere", tree + "/dangling");
  disk.remove_tree(tree + "/");
  EXPECT_FALSE(disk.exists(tree));
  EXPECT_TRUE(archive_is_whole());
  EXPECT_EQ(disk.list(directory.path), std::vector<std::string>{"archive"});
  EXPECT_THROW(disk.remove_tree(tree), base::Error) << "nothing is there";
}

TEST(FileSystem, AnErrorNamesPathAndCause) {
  PosixFileSystem disk;
  try {
    disk.read("/no/such/file");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.room(), "files");
    EXPECT_NE(std::string(error.what()).find("/no/such/file"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
}

TEST(FileSystem, ARealWriteThatReachesTheLimitThrowsAndKeepsTheProcess) {
  TemporaryDirectory directory;
  struct rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit {
    1000, old.rlim_max
  };
  setrlimit(RLIMIT_FSIZE, &limit);
  PosixFileSystem disk;
  EXPECT_THROW(put(disk, directory.path + "/f", std::string(1500, 'x')), base::Error);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(disk.read(directory.path + "/f").size(), 1000u) << "the short write before it was taken";
}

TEST(MemoryFileSystem, APowerCutKeepsWhatWasSyncedAndNothingElse) {
  MemoryFileSystem disk;
  put(disk, "/synced", "abc", true);
  put(disk, "/data_only", "abc");
  disk.sync_directory("/");
  put(disk, "/name_lost", "abc", true);
  const auto after = disk.after_power_cut(0);
  EXPECT_EQ(after->read("/synced"), "abc");
  EXPECT_EQ(after->read("/data_only"), "");
  EXPECT_FALSE(after->exists("/name_lost"));
  EXPECT_EQ(disk.after_kill()->read("/name_lost"), "abc");
}

TEST(MemoryFileSystem, ARenameIsLostUntilTheDirectoryIsSynced) {
  MemoryFileSystem disk;
  put(disk, "/old", "old", true);
  put(disk, "/new", "new", true);
  disk.sync_directory("/");
  disk.rename("/new", "/old");
  EXPECT_EQ(disk.after_power_cut(0)->read("/old"), "old");
  disk.sync_directory("/");
  EXPECT_EQ(disk.after_power_cut(0)->read("/old"), "new");
}

TEST(FaultFileSystem, ReplaceFileHoldsOldOrNewWhateverHappens) {
  for (int64_t crash = 0;; ++crash) {
    MemoryFileSystem disk;
    put(disk, "/f", "old contents", true);
    disk.sync_directory("/");
    FaultFileSystem faulty(disk, {.crash_at_call = crash, .short_writes = true});
    bool crashed = false;
    try {
      faulty.replace_file("/f", "new contents of another length");
    } catch (const SimulatedCrash&) { crashed = true; }
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::string text = disk.after_power_cut(seed)->read("/f");
      const bool is_new = text == "new contents of another length";
      EXPECT_TRUE(is_new || (crashed && text == "old contents"))
          << "crash at call " << crash << ", seed " << seed << ": " << text;
    }
    if (!crashed) {
      EXPECT_GE(crash, 9) << "create, 5 short writes, sync, close, rename, sync of the directory";
      break;
    }
  }
}

TEST(FaultFileSystem, AFullDiskTakesThePartThatFitsAndThenThrows) {
  MemoryFileSystem disk;
  FaultFileSystem faulty(disk, {.space_bytes = 4});
  EXPECT_THROW(put(faulty, "/f", "abcdef"), base::Error);
  EXPECT_EQ(disk.read("/f"), "abcd");
}

TEST(FaultFileSystem, OneCallFailsAndTheNextWorks) {
  MemoryFileSystem disk;
  FaultFileSystem faulty(disk, {.fail_at_call = 1});
  EXPECT_THROW(put(faulty, "/f", "x"), base::Error);
  EXPECT_NO_THROW(put(faulty, "/f", "x"));
  EXPECT_EQ(faulty.calls(), 2 + 3);
}

// Known answers from the xxhash package for Python.
TEST(Checksum, GivesTheKnownAnswersWholeAndInParts) {
  std::string long_text(10000, '\0');
  for (size_t i = 0; i < long_text.size(); ++i) long_text[i] = static_cast<char>(i % 251);
  EXPECT_EQ(to_hex(checksum("", 0)), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(to_hex(checksum("metroplex", 9)), "dbd871f3e509a8d272c72eeef941f55a");
  EXPECT_EQ(to_hex(checksum(long_text.data(), long_text.size())), "89dec82a789965e61cb3abee1c2fc1c4");
  ChecksumStream stream;
  for (size_t at = 0; at < long_text.size(); at += 777)
    stream.add(long_text.data() + at, std::min<size_t>(777, long_text.size() - at));
  EXPECT_EQ(to_hex(stream.sum()), "89dec82a789965e61cb3abee1c2fc1c4");
  Checksum back;
  EXPECT_TRUE(from_hex("89dec82a789965e61cb3abee1c2fc1c4", back));
  EXPECT_EQ(back, stream.sum());
  EXPECT_FALSE(from_hex("89DEC82a789965e61cb3abee1c2fc1c4", back));
  EXPECT_FALSE(from_hex("89dec82a789965e61cb3abee1c2fc1c", back));
}

TEST(Dtype, NamesAndSizesAgreeBothWays) {
  for (int i = 0; i <= static_cast<int>(Dtype::kU64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
  EXPECT_STREQ(dtype_name(Dtype::kI16), "I16");
  EXPECT_EQ(dtype_bits(Dtype::kF8E5M2Fnuz), 8);
  EXPECT_STREQ(dtype_name(Dtype::kU64), "U64");
}

TEST(Dtype, ReadsHalfPrecisionExactly) {
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x8000};
  const double values[] = {1.0, -2.0, 0x1p-24, 65504.0, HUGE_VAL, -0.0};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(element_as_double(Dtype::kF16, reinterpret_cast<const std::byte*>(halves), i), values[i]);
  }
  const uint16_t brain = 0x3f80;
  EXPECT_EQ(element_as_double(Dtype::kBF16, reinterpret_cast<const std::byte*>(&brain), 0), 1.0);
  EXPECT_THROW(element_as_double(Dtype::kF6E2M3, reinterpret_cast<const std::byte*>(&brain), 0), base::Error);
}

// Makes flock fail in this process from now on.
bool fail_flock(uint32_t error) {
  sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
                        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_flock},
                        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error},
                        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{4, code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Posix, LocksNothingWhereTheFileSystemHasNoLocks) {
  const TemporaryDirectory directory;
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP, EINVAL, EIO}) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 2;
      try {
        if (fail_flock(static_cast<uint32_t>(error)))
          code = PosixFileSystem().try_lock(directory.path + "/lock") != nullptr ? 0 : 1;
      } catch (const base::Error&) { code = 3; }
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), error == EIO ? 3 : 0) << std::strerror(error);
  }
}

}  // namespace
}  // namespace metroplex::files::file_system_test
