// Memory that a process can still allocate, from file trees as on machines and in containers.
#include "base/free_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/folder.h"

namespace metroplex::base::free_memory_test {
namespace {

constexpr int64_t kMiB = 1048576;

class FreeMemoryOf : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // 8 GiB in total, 6 GiB of them available.
  void machine() {
    write("/proc/meminfo",
          "MemTotal:        8388608 kB\nMemFree:  1048576 kB\nMemAvailable:    6291456 kB\nCached: 9 kB\n");
  }
  // A limit of version 2, in MiB: usage includes 100 MiB of page cache.
  void limit2(const std::string& group, int64_t limit, int64_t usage) {
    const std::string folder = "/sys/fs/cgroup" + group;
    write(folder + "/memory.max", std::to_string(limit * kMiB) + "\n");
    write(folder + "/memory.current", std::to_string(usage * kMiB) + "\n");
    write(folder + "/memory.stat", "anon 5\nfile 104857600\ninactive_file 62914560\nactive_file 41943040\nshmem 7\n");
  }
  std::optional<FreeMemory> found() const { return free_memory(folder_.path()); }

  test::Folder folder_;
};

TEST_F(FreeMemoryOf, NothingIsKnownWithoutMeminfo) {
  limit2("", 512, 200);
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_FALSE(found().has_value());
}

TEST_F(FreeMemoryOf, AMachineWithoutLimitsHasWhatIsAvailable) {
  machine();
  ASSERT_TRUE(found());
  EXPECT_EQ(found()->bytes, 6144 * kMiB);
  EXPECT_EQ(found()->from, "/proc/meminfo");
  write("/proc/self/cgroup", "0::/user.slice\n");
  write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  write("/sys/fs/cgroup/user.slice/memory.current", "1234\n");
  EXPECT_EQ(found()->bytes, 6144 * kMiB);
}

// 512 minus the 100 that cannot be reclaimed: 200 with 100 of page cache.
TEST_F(FreeMemoryOf, ALimitLeavesWhatIsNotHeldForGood) {
  machine();
  write("/proc/self/cgroup", "0::/job/step\n");
  limit2("/job/step", 512, 200);
  EXPECT_EQ(found()->bytes, 412 * kMiB);
  EXPECT_EQ(found()->from, "/sys/fs/cgroup/job/step/memory.max");
  limit2("/job/step", 100000, 200);
  EXPECT_EQ(found()->from, "/proc/meminfo");
}

TEST_F(FreeMemoryOf, ALimitFurtherUpCounts) {
  machine();
  write("/proc/self/cgroup", "0::/job/step/task\n");
  limit2("/job/step/task", 2048, 200);
  limit2("/job", 1024, 900);
  EXPECT_EQ(found()->bytes, 224 * kMiB);
  EXPECT_EQ(found()->from, "/sys/fs/cgroup/job/memory.max");
  limit2("/job", 1024, 1200);  // over its limit: nothing is left, not a negative amount
  EXPECT_EQ(found()->bytes, 0);
}

// A container sees its own cgroup as the root, while /proc may contain the path outside.
TEST_F(FreeMemoryOf, AContainersOwnLimitLiesAtTheRoot) {
  machine();
  write("/proc/self/cgroup", "0::/docker/0123abc\n");
  limit2("", 768, 200);
  EXPECT_EQ(found()->bytes, 668 * kMiB);
  EXPECT_EQ(found()->from, "/sys/fs/cgroup/memory.max");
}

TEST_F(FreeMemoryOf, VersionOneIsReadWhereItIsMounted) {
  machine();
  write("/proc/self/cgroup", "9:cpu,cpuacct:/other\n4:hugetlb,memory:/slurm/job_7\n1:name=systemd:/x\n");
  const std::string folder = "/sys/fs/cgroup/memory/slurm/job_7/";
  write(folder + "memory.limit_in_bytes", "1073741824\n");
  write(folder + "memory.usage_in_bytes", "314572800\n");
  write(folder + "memory.stat",
        "cache 9\ninactive_file 1\ntotal_inactive_file 52428800\ntotal_active_file 52428800\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5529890816\n");
  EXPECT_EQ(found()->bytes, 824 * kMiB);
  EXPECT_EQ(found()->from, "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes");
  // The group of another controller is ignored.
  write("/proc/self/cgroup", "9:cpu,cpuacct:/slurm/job_7\n");
  EXPECT_EQ(found()->from, "/proc/meminfo");
}

TEST_F(FreeMemoryOf, WhatIsNotANumberDoesNotCount) {
  machine();
  write("/proc/self/cgroup", "nonsense\n0::/job\n");
  write("/sys/fs/cgroup/job/memory.max", "many\n");
  write("/sys/fs/cgroup/job/memory.current", "1\n");
  EXPECT_EQ(found()->bytes, 6144 * kMiB);
}

TEST(FreeMemory, ThisMachineHasSome) {
  const auto here = free_memory();
  ASSERT_TRUE(here);
  EXPECT_GT(here->bytes, kMiB);
}

}  // namespace
}  // namespace metroplex::base::free_memory_test
