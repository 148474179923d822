#include "checkpoint/rewrite.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "checkpoint/compare.h"
#include "checkpoint/directory.h"
#include "checkpoint/support.h"
#include "files/memory_file_system.h"
#include "support/error_of.h"

namespace metroplex::checkpoint::rewrite_test {
namespace {

using test::catch_error;

constexpr const char* kFrom = "/ckpt/iter_0000010";

bool all(const files::TensorForm&) { return true; }

TEST(Rewrite, AnyNumberOfFilesHoldsTheSameTensors) {
  files::MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.ranks = 4, .layout = 7}).ok);
  const OpenSource open = [&] { return std::make_unique<Reader>(disk, kFrom); };
  int64_t bytes = 0, largest_row = 0;
  for (const ModelTensor& tensor : small_model()) {
    const int64_t here = files::element_count(tensor.shape) * files::dtype_bits(tensor.dtype) / 8;
    bytes += here;
    largest_row = std::max(largest_row, here / (tensor.shape.empty() ? 1 : tensor.shape[0]));
  }
  for (const int ranks : {1, 2, 3, 7, 60}) {
    const std::string root = "/out" + std::to_string(ranks);
    RunState state{.iteration = 10, .consumed_samples = 77, .config_yaml = "a: 1\n", .extra = R"({"b":2})"};
    state.side_files = {{"tokenizer.model", "bytes of it"}};
    const SaveResult result = rewrite(disk, open, root, state, ranks, all);
    Alone alone;
    const Found found = open_newest(disk, root, alone);  // verifies all of it
    ASSERT_NE(found.reader, nullptr);
    EXPECT_EQ(found.reader->directory(), result.directory);
    EXPECT_EQ(found.reader->manifest().consumed_samples, 77);
    EXPECT_EQ(found.reader->manifest().extra, R"({"b":2})");
    EXPECT_EQ(disk.read(result.directory + "/tokenizer.model"), "bytes of it");
    Reader first(disk, kFrom);
    const auto rows = compare(first, *found.reader);
    EXPECT_EQ(rows.size(), small_model().size());
    for (const TensorDifference& row : rows)
      EXPECT_TRUE(row.problem.empty() && row.different_elements == 0) << row.name;
    // A share is the bytes over the ranks, plus at most one row at each end.
    std::vector<int64_t> held(found.reader->manifest().files.size());
    for (const files::ManifestTensor& tensor : found.reader->manifest().tensors) {
      for (const files::ManifestPiece& piece : tensor.pieces)
        held[static_cast<size_t>(piece.file)] += (piece.end - piece.begin) * files::dtype_bits(tensor.dtype) / 8;
    }
    for (const int64_t share : held) EXPECT_LE(share, bytes / ranks + 1 + largest_row) << ranks;
    if (ranks <= 7) {
      EXPECT_EQ(held.size(), static_cast<size_t>(ranks) + 1);  // and the tokenizer's
    }
  }
}

TEST(Rewrite, TakesWhatIsWantedAndFailsAsASaveDoes) {
  files::MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.ranks = 2, .layout = 3}).ok);
  const OpenSource open = [&] { return std::make_unique<Reader>(disk, kFrom); };
  rewrite(disk, open, "/weights", {}, 2, [](const files::TensorForm& tensor) { return tensor.kind == "weight"; });
  Alone alone;
  const Found found = open_newest(disk, "/weights", alone);
  std::set<std::string> kinds;
  for (const files::TensorForm& tensor : found.reader->tensors()) kinds.insert(tensor.kind);
  EXPECT_EQ(found.reader->tensors().size(), 3u);
  EXPECT_EQ(kinds, std::set<std::string>{"weight"});
  // A source that loses a file during the save: an error of the save on all threads, without leftovers.
  const Reader whole(disk, kFrom);
  const auto broken = [&]() -> std::unique_ptr<TensorSource> {
    auto reader = std::make_unique<Reader>(disk, kFrom);
    if (disk.exists(std::string(kFrom) + "/rank_00001.safetensors"))
      disk.remove(std::string(kFrom) + "/rank_00001.safetensors");
    return reader;
  };
  const std::string error = catch_error([&] { rewrite(disk, broken, "/broken", {}, 3, all); });
  EXPECT_NE(error.find("rank_00001.safetensors"), std::string::npos) << error;
  EXPECT_TRUE(list_checkpoints(disk, "/broken").empty());
}

}  // namespace
}  // namespace metroplex::checkpoint::rewrite_test
