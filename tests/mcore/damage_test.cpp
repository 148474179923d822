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
  ASSERT_FALSE(text.empty());
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
  expect_errors("adam_buckets_dp2", ".metadata", 200);
  expect_errors("adam_space_tp2_dp2", ".metadata", 200);
  expect_errors("llama_dcp_dp2", ".metadata", 100);
  expect_errors("adam_legacy_tp2_dp2", "mp_rank_00/distrib_optim.pt", 60);
}

TEST(DamagedMegatronCheckpoint, OneRankHasOneFolder) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "moe_legacy_ep2"), "/c");
  copy_case(disk, join_path(kVectors, "moe_legacy_ep2/iter_0000007/mp_rank_00_000"), "/c/iter_0000007/mp_rank_00_00");
  EXPECT_NE(test::catch_error([&] { read_model(disk); }).find("another folder is of the same rank"),
            std::string::npos);
}

// As in older versions of Megatron, whose optimizer state has other shapes.
TEST(MegatronOptimizerState, IsOptional) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "trained_dist"), "/c");
  const std::string directory = "/c/iter_0000007", path = join_path(directory, ".metadata"), text = disk.read(path);
  const std::string name = "decoder.final_layernorm.weight", size = "K\x10\x85";  // (16,)
  const config::Model model = read_model(disk);
  const auto has_state = [&](const char* kind) { return Source(disk, directory, model).find(name, kind) != nullptr; };
  EXPECT_TRUE(has_state("exp_avg"));
  std::string other = text;
  other[other.find(size, other.find("optimizer.state.exp_avg." + name)) + 1] = 17;
  disk.replace_file(path, other);
  EXPECT_FALSE(has_state("exp_avg"));
  EXPECT_TRUE(has_state("exp_avg_sq") && has_state("main") && has_state("weight"));
}

// Returns why the optimizer state of a case is not read after one text of a file is replaced by another.
std::string find_state_problem(const std::string& test, const std::string& file, const std::string& from,
                               const std::string& to) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, test), "/c");
  const std::string path = join_path("/c/iter_0000007", file);
  std::string text = disk.read(path);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  disk.replace_file(path, text.replace(at, from.size(), to));
  const Contents contents = read_contents(disk, "/c/iter_0000007");
  const Source source(disk, "/c/iter_0000007", read_model(disk));
  const bool is_read = source.find("output_layer.weight", "exp_avg") != nullptr ||
                       source.find("embedding.word_embeddings.weight", "exp_avg") != nullptr;
  EXPECT_EQ(is_read, contents.state_problem.empty());
  return contents.state_problem;
}

TEST(MegatronOptimizerState, NamesUnreadableForms) {
  const auto expect = [](const std::string& problem, const char* text) {
    EXPECT_NE(problem.find(text), std::string::npos) << "'" << problem << "' instead of " << text;
  };
  const std::string model = "mp_rank_00/model_optim_rng.pt", buffers = "mp_rank_00/distrib_optim.pt";
  EXPECT_EQ(find_state_problem("adam_legacy_tp2_dp2", model, "overlap_grad_reduce", "overlap_grad_reduce"), "");
  expect(find_state_problem("adam_legacy_tp2_dp2", model, "overlap_grad_reduce", "overlap_grad_xxxxxx"),
         "but the buckets of its parameters have");
  expect(find_state_problem("adam_legacy_tp2_dp2", buffers, "buckets_coalesced", "buckets_xxxxxxxxx"),
         "an older form, which stores each bucket separately");
  const std::string stage = "mp_rank_00_000/model_optim_rng.pt";
  expect(find_state_problem("adam_legacy_tp2_pp2", stage, "wd_mult", "wd_xxxx"), "not those of weight decay");
  expect(find_state_problem("adam_legacy_tp2_pp2", stage, "exp_avg_sq", "exp_avg_xx"), "not the state of Adam");
  expect(find_state_problem("adam_buckets_dp2", "common.pt", "transformer_impl", "transformer_xxxx"),
         "crosses the border of");
  expect(find_state_problem("adam_buckets_dp2", "common.pt", "mtp_num_layers", "xxx_num_layers"), "");
}

// Returns `text` with the first `from` after `name` replaced by `to`.
std::string replace_after(std::string text, const std::string& name, const std::string& from, const std::string& to) {
  const size_t at = text.find(from, text.find(name));
  EXPECT_NE(at, std::string::npos) << name;
  return text.replace(at, from.size(), to);
}

TEST(MegatronFlatState, HasTheShardsOfItsWeight) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "adam_moe_space_ep2_dp2"), "/c");
  const std::string directory = "/c/iter_0000007", path = join_path(directory, ".metadata"), text = disk.read(path),
                    common = disk.read(join_path(directory, "common.pt"));
  const auto expect = [&](const std::string& problem) {
    const Contents contents = read_contents(disk, directory);
    EXPECT_EQ(contents.state_problem, problem);
    EXPECT_EQ(contents.tensors.contains("main/output_layer.weight"), problem.empty());
    EXPECT_TRUE(contents.tensors.contains("output_layer.weight"));
  };
  expect("");
  // The shape in mcore_data is (4, 16, 8), with 4 shards of 128 elements.
  const std::string experts = "decoder.layers.1.mlp.experts.experts.linear_fc2.weight", shape = "K\x04K\x10K\x08\x87",
                    key = "nd_reformulated_orig_global_shape";
  disk.replace_file(path, replace_after(text, key, shape, "K\x04K\x08K\x10\x87"));
  expect("exp_avg/" + experts + " is not divided like its weight");
  disk.replace_file(path, replace_after(text, key, shape, "K\x04K\x10K\x09\x87"));
  expect("exp_avg/" + experts + " of shape [4, 16, 9] is stored as [4, 1, 1, 128]");
  disk.replace_file(path, text);
  const std::string off = "\x89", on = "\x88";  // False and True
  disk.replace_file(join_path(directory, "common.pt"), replace_after(common, "moe_grouped_gemm", off, on));
  expect("exp_avg/decoder.layers.1.mlp.experts.experts.linear_fc1.weight is not divided like its weight");
}

TEST(MegatronDirectory, IsFoundByIteration) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "gpt_legacy"), "/c");
  for (const char* path : {"/c", "/c/iter_0000007"}) {
    EXPECT_EQ(find_directory(disk, path, 0), "/c/iter_0000007");
    EXPECT_EQ(find_directory(disk, path, 7), "/c/iter_0000007");
    EXPECT_NE(test::catch_error([&] { find_directory(disk, path, 8); }).find("iteration 8"), std::string::npos);
  }
  EXPECT_EQ(find_directory(disk, "/c/iter_0000007/mp_rank_00", 0), "");
  disk.remove("/c/latest_checkpointed_iteration.txt");
  EXPECT_EQ(find_directory(disk, "/c", 0), "");
}

TEST(DamagedMegatronCheckpoint, NamesMissingFiles) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "llama_legacy_tp2_pp2"), "/c");
  const config::Model model = read_model(disk);
  copy_case(disk, join_path(kVectors, "llama_legacy_tp2_pp2/iter_0000007/mp_rank_01_001"),
            "/c/iter_0000007/mp_rank_02_001");
  const auto error = [&] { return test::catch_error([&] { read_all(disk, model); }); };
  EXPECT_NE(error().find("mp_rank_02_001/model_optim_rng.pt' is not of this checkpoint"), std::string::npos)
      << error();
  disk.remove_tree("/c/iter_0000007/mp_rank_02_001");
  disk.remove_tree("/c/iter_0000007/mp_rank_01_001");
  EXPECT_NE(
      error().find("no mp_rank folder of tensor-parallel rank 1 of 2, pipeline stage 1 of 2 and expert-parallel "
                   "rank 0"),
      std::string::npos)
      << error();
  disk.replace_file("/c/latest_checkpointed_iteration.txt", "seven");
  EXPECT_NE(test::catch_error([&] { read_all(disk, model); }).find("= 'seven': must be an iteration or release"),
            std::string::npos);
}

TEST(DamagedMegatronCheckpoint, LacksAShard) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "llama_legacy_tp2_pp2"), "/c");
  const config::Model model = read_model(disk);
  const std::string path = "/c/iter_0000007/mp_rank_01_001/model_optim_rng.pt",
                    name = "decoder.layers.0.mlp.linear_fc1.weight";
  std::string bytes = disk.read(path);
  const size_t at = bytes.find(name);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'D';  // the tensor does not belong to the model
  disk.replace_file(path, bytes);
  EXPECT_NE(test::catch_error([&] { read_all(disk, model); }).find("the checkpoint is incomplete"),
            std::string::npos);
}

TEST(DamagedMegatronCheckpoint, LacksExpertRanks) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "moe_legacy_ep2"), "/c");
  const config::Model model = read_model(disk);
  disk.remove_tree("/c/iter_0000007/mp_rank_00_001");
  EXPECT_NE(test::catch_error([&] { read_all(disk, model); }).find("expert-parallel rank 1 of 2"), std::string::npos);
}

TEST(DamagedMegatronCheckpoint, NamesAMissingFolder) {
  files::MemoryFileSystem disk;
  copy_case(disk, join_path(kVectors, "gpt_dist"), "/c");
  disk.remove("/c/iter_0000007/common.pt");
  EXPECT_NE(test::catch_error([&] { find_directory(disk, "/c", 0); }).find("common.pt' is missing"),
            std::string::npos);
  disk.replace_file("/c/latest_checkpointed_iteration.txt", "9");
  EXPECT_NE(test::catch_error([&] { find_directory(disk, "/c", 0); }).find("names '/c/iter_0000009'"),
            std::string::npos);
}

}  // namespace
}  // namespace metroplex::mcore::damage_test
