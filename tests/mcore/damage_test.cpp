// Checkpoints with damaged files.
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/memory_file_system.h"
#include "files/mutate.h"
#include "mcore/settings.h"
#include "mcore/source.h"
#include "support/error_of.h"

namespace metroplex::mcore::damage_test {
namespace {

using files::join_path;

const std::string kVectors = std::string(METROPLEX_SOURCE_DIR) + "/tests/vectors/megatron_checkpoints";

// Copies a recorded checkpoint to "/c", with one file replaced.
void copy_case(files::FileSystem& disk, const std::string& from, const std::string& to) {
  files::PosixFileSystem real;
  disk.make_directories(to);
  for (const std::string& name : real.list(from)) {
    const std::string source = join_path(from, name), target = join_path(to, name);
    if (real.is_directory(source)) copy_case(disk, source, target);
    else disk.replace_file(target, real.read(source));
  }
}

config::Model read_model(files::FileSystem& disk) {
  const std::string directory = find_directory(disk, "/c", 0);
  return config::resolved(config::load("", read_settings(read_contents(disk, directory), directory)), 1).model;
}

// Reads all tensors of the checkpoint "/c".
void read_all(files::FileSystem& disk, const config::Model& model) {
  Source source(disk, find_directory(disk, "/c", 0), model);
  std::string bytes;
  for (const files::TensorForm& form : source.tensors()) {
    const auto count = static_cast<size_t>(checkpoint::whole_piece(form.shape).count());
    bytes.resize(count * static_cast<size_t>(files::dtype_bits(form.dtype)) / 8);
    source.fill({form.name, form.kind, form.shape, checkpoint::Dims(form.shape.size(), 0), form.shape, form.dtype,
                 bytes.data()});
  }
}

// Every damaged file is read or rejected with an error; at least 1 in 5 is rejected.
void expect_errors(const std::string& test, const std::string& file, int64_t trials) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, test), "/c");
  const config::Model model = read_model(disk);
  read_all(disk, model);
  const std::string path = join_path("/c/iter_0000007", file), text = disk.read(path);
  int64_t rejected = 0;
  for (int64_t seed = 0; seed < trials; ++seed) {
    files::Mutator mutate(static_cast<uint64_t>(seed));
    disk.replace_file(path, mutate(text));
    const bool has_args = !file.ends_with(".metadata") && !file.ends_with(".distcp");
    rejected += test::catch_error([&] { read_all(disk, has_args ? read_model(disk) : model); }).empty() ? 0 : 1;
  }
  EXPECT_GT(rejected, trials / 5) << file;
}

TEST(DamagedMegatronCheckpoint, IsReadOrRejected) {
  expect_errors("gpt_dist", ".metadata", 1000);
  expect_errors("gpt_dist", "__0_0.distcp", 300);
  expect_errors("gpt_dist", "common.pt", 60);
  expect_errors("gpt_legacy", "mp_rank_00/model_optim_rng.pt", 60);
}

TEST(DamagedMegatronCheckpoint, NamesMissingFiles) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "llama_legacy_tp2_pp2"), "/c");
  const config::Model model = read_model(disk);
  disk.remove_tree("/c/iter_0000007/mp_rank_01_001");
  disk.remove_tree("/c/iter_0000007/mp_rank_00_001");
  EXPECT_NE(test::catch_error([&] { read_all(disk, model); }).find("no mp_rank folder of pipeline stage 1 of 2"),
            std::string::npos);
  disk.replace_file("/c/latest_checkpointed_iteration.txt", "seven");
  EXPECT_NE(test::catch_error([&] { read_all(disk, model); }).find("= 'seven': must be an iteration or release"),
            std::string::npos);
}

TEST(DamagedMegatronCheckpoint, LacksAShard) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "llama_legacy_tp2_pp2"), "/c");
  const config::Model model = read_model(disk);
  disk.remove_tree("/c/iter_0000007/mp_rank_01_001");
  EXPECT_NE(test::catch_error([&] { read_all(disk, model); }).find("the checkpoint is incomplete"),
            std::string::npos);
}

}  // namespace
}  // namespace metroplex::mcore::damage_test
