#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/support.h"
#include "files/memory_file_system.h"

namespace metroplex::checkpoint::save_load_test {
namespace {

using files::FaultFileSystem;
using files::MemoryFileSystem;

Found newest(files::FileSystem& disk) {
  Alone alone;
  return open_newest(disk, "/ckpt", alone);
}

// The iteration of the newest sound checkpoint, after comparing its values; -1 if there is none.
int64_t sound_iteration(files::FileSystem& disk) {
  const Found found = newest(disk);
  if (found.reader == nullptr) return -1;
  const int64_t iteration = found.reader->manifest().iteration;
  EXPECT_EQ(check_model(*found.reader, iteration, 5), "");
  return iteration;
}

TEST(Checkpoint, LoadsInAnyLayoutWhatWasSavedInAnyOther) {
  for (uint64_t layout = 0; layout < 12; ++layout) {
    MemoryFileSystem disk;
    const SaveResult result = save_model(disk, {.ranks = 1 + static_cast<int>(layout % 5), .layout = layout});
    ASSERT_TRUE(result.ok) << result.error;
    EXPECT_EQ(result.directory, "/ckpt/iter_0000010");
    const Found found = newest(disk);
    ASSERT_NE(found.reader, nullptr);
    EXPECT_TRUE(found.problems.empty());
    for (uint64_t other = 0; other < 12; ++other)
      EXPECT_EQ(check_model(*found.reader, 10, other), "") << layout << " to " << other;
    EXPECT_EQ(found.reader->manifest().consumed_samples, 640);
    EXPECT_EQ(found.reader->manifest().config_yaml, "run: {seed: 1}\n");
    EXPECT_EQ(found.reader->manifest().extra, R"({"lr":0.5})");
  }
}

TEST(Checkpoint, SideFilesAreCountedAndSurviveAPowerCut) {
  MemoryFileSystem disk;
  Alone alone;
  const std::vector<float> data{1, 2, 3};
  const std::vector<SideFile> beside{{"tokenizer.json", "{\"a\": 1}"}, {"chat.jinja", "{{ messages }}"}};
  const SaveResult result = save(disk, "/ckpt", {.iteration = 1, .side_files = beside},
                                 {{"w", "weight", {3}, {0}, {3}, files::Dtype::kF32, data.data()}}, alone);
  ASSERT_TRUE(result.ok) << result.error;
  const auto after = disk.after_power_cut(0);
  size_t bytes = after->file_size(result.directory + "/rank_00000.safetensors").value_or(0);
  EXPECT_GT(bytes, 12u);
  for (const SideFile& file : beside) {
    EXPECT_EQ(after->read(result.directory + "/" + file.name), file.text);
    bytes += file.text.size();
  }
  EXPECT_EQ(static_cast<size_t>(result.bytes), bytes);
}

TEST(Checkpoint, AllRanksOpenTheSameOneAndShareTheVerifying) {
  MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.ranks = 4, .layout = 2, .iteration = 10}).ok);
  ASSERT_TRUE(save_model(disk, {.ranks = 4, .layout = 3, .iteration = 20}).ok);
  disk.flip_bit("/ckpt/iter_0000020/rank_00002.safetensors", 12345 % 800);
  RankThreads group(3);
  std::vector<int64_t> opened(3, 0);
  std::vector<size_t> problems(3, 0);
  group.run([&](Exchange& exchange) {
    const Found found = open_newest(disk, "/ckpt", exchange);
    opened[static_cast<size_t>(exchange.rank())] = found.reader->manifest().iteration;
    problems[static_cast<size_t>(exchange.rank())] = found.problems.size();
  });
  EXPECT_EQ(opened, (std::vector<int64_t>{10, 10, 10}));
  EXPECT_EQ(problems, (std::vector<size_t>{1, 1, 1}));
}

TEST(Checkpoint, ACrashAtAnyCallLeavesTheOldOrTheNewOne) {
  for (const int ranks : {1, 2}) {
    int64_t crash = 0;
    for (;; ++crash) {
      MemoryFileSystem disk;
      disk.make_directory("/ckpt");
      disk.sync_directory("/");
      ASSERT_TRUE(save_model(disk, {.ranks = 2, .layout = 1, .iteration = 10}).ok);
      FaultFileSystem faulty(disk, {.crash_at_call = crash});
      bool crashed = false;
      const SaveResult result = save_model(faulty, {.ranks = ranks, .layout = 4, .iteration = 20}, &crashed);
      for (uint64_t seed = 0; seed < 32; ++seed) {
        const auto after = seed == 31 ? disk.after_kill() : disk.after_power_cut(seed);
        const Latest latest = read_latest(*after, "/ckpt");
        ASSERT_TRUE(latest.name.has_value()) << latest.problem;
        const Found found = newest(*after);
        ASSERT_NE(found.reader, nullptr);
        EXPECT_TRUE(found.problems.empty()) << "latest points to something unsound: " << found.problems[0];
        EXPECT_EQ(found.reader->manifest().iteration, latest.name->iteration);
        EXPECT_TRUE(latest.name->iteration == 20 || (crashed && latest.name->iteration == 10));
        EXPECT_EQ(check_model(*found.reader, latest.name->iteration, 5), "");
        // The next run saves and sweeps.
        const SaveResult again = save_model(*after, {.ranks = 1, .layout = 6, .iteration = 20});
        ASSERT_TRUE(again.ok) << again.error;
        EXPECT_EQ(sound_iteration(*after), 20);
        for (const std::string& name : after->list("/ckpt"))
          EXPECT_FALSE(name.starts_with(".tmp") || name.starts_with(".delete")) << name;
      }
      if (!crashed) {
        EXPECT_TRUE(result.ok);
        break;
      }
    }
    EXPECT_GE(crash, 12) << "fewer calls than a save must make";
  }
}

TEST(Checkpoint, AFailureOfAnyCallIsAResultAndTheNextSaveWorks) {
  int failed = 0;
  for (int64_t call = 0;; ++call) {
    MemoryFileSystem disk;
    ASSERT_TRUE(save_model(disk, {.ranks = 1, .layout = 0, .iteration = 10}).ok);
    FaultFileSystem faulty(disk, {.fail_at_call = call});
    const SaveResult result = save_model(faulty, {.ranks = 3, .layout = 4, .iteration = 20});
    const int64_t sound = sound_iteration(disk);
    if (result.ok) {
      EXPECT_EQ(sound, 20);
    } else {
      ++failed;
      EXPECT_NE(result.error.find("Input/output error"), std::string::npos) << result.error;
      EXPECT_TRUE(sound == 10 || sound == 20);  // 20: only the last sync of `latest` failed
    }
    if (result.ok && faulty.calls() <= call) break;  // the save finished before the call that fails
    ASSERT_TRUE(save_model(faulty, {.ranks = 3, .layout = 7, .iteration = 30}).ok);
    EXPECT_EQ(sound_iteration(disk), 30);
  }
  EXPECT_GE(failed, 12);
}

TEST(Checkpoint, AFullDiskAtAnyByteLeavesTheOldOne) {
  MemoryFileSystem probe;
  FaultFileSystem counter(probe, {});
  ASSERT_TRUE(save_model(counter, {.ranks = 2, .layout = 4, .iteration = 20}).ok);
  const int64_t needed = counter.written_bytes();
  for (int64_t space = 0; space < needed; space += 37) {
    MemoryFileSystem disk;
    ASSERT_TRUE(save_model(disk, {.ranks = 1, .layout = 0, .iteration = 10}).ok);
    FaultFileSystem faulty(disk, {.space_bytes = space, .short_writes = space % 2 == 0});
    const SaveResult result = save_model(faulty, {.ranks = 2, .layout = 4, .iteration = 20});
    EXPECT_FALSE(result.ok);
    EXPECT_NE(result.error.find("No space left"), std::string::npos) << result.error;
    const Found found = newest(disk);
    EXPECT_EQ(found.reader->manifest().iteration, 10);
    EXPECT_TRUE(found.problems.empty());
    for (const std::string& name : disk.list("/ckpt"))
      EXPECT_FALSE(name.starts_with(".tmp")) << "half a checkpoint was left";
  }
}

TEST(Checkpoint, AThousandFlippedBitsAreAllFoundAndTheGoodOneIsUsed) {
  MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.ranks = 2, .layout = 8, .iteration = 10}).ok);
  ASSERT_TRUE(save_model(disk, {.ranks = 3, .layout = 9, .iteration = 20}).ok);
  std::vector<std::string> paths{"/ckpt/latest"};
  for (const std::string& name : disk.list("/ckpt/iter_0000020")) paths.push_back("/ckpt/iter_0000020/" + name);
  ASSERT_GE(paths.size(), 4u);
  std::mt19937_64 random(1);
  for (int flip = 0; flip < 1000; ++flip) {
    const std::string& path = paths[random() % paths.size()];
    const uint64_t bit = random() % (disk.read(path).size() * 8);
    disk.flip_bit(path, bit);
    const Found found = newest(disk);
    ASSERT_EQ(found.problems.size(), 1u) << path << " bit " << bit;
    EXPECT_NE(found.problems[0].find(path), std::string::npos)
        << "the damaged file is not named: " << found.problems[0];
    EXPECT_EQ(found.reader->manifest().iteration, path == "/ckpt/latest" ? 20 : 10);
    disk.flip_bit(path, bit);
  }
  EXPECT_EQ(sound_iteration(disk), 20);
}

TEST(Checkpoint, APieceIsComparedBeforeItIsUsedEvenWithoutVerifyingFiles) {
  MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.ranks = 1, .layout = 0}).ok);
  const std::string path = "/ckpt/iter_0000010/rank_00000.safetensors";
  const uint64_t bytes = disk.read(path).size();
  for (uint64_t back = 1; back <= 8; ++back) {
    disk.flip_bit(path, (bytes - back) * 8 + 3);
    Reader reader(disk, "/ckpt/iter_0000010");
    EXPECT_THROW(check_model(reader, 10, 1), base::Error);
    disk.flip_bit(path, (bytes - back) * 8 + 3);
  }
}

// A crash between a commit and the removal of the older attempt leaves both.
TEST(Checkpoint, AnIterationIsReadFromItsLastAttempt) {
  MemoryFileSystem disk;
  Alone alone;
  ASSERT_TRUE(save_model(disk, {.iteration = 10}).ok);
  disk.rename("/ckpt/iter_0000010", "/ckpt/iter_0000010.2");
  ASSERT_TRUE(save_model(disk, {.iteration = 10}).ok);
  ASSERT_EQ(list_checkpoints(disk, "/ckpt").size(), 2u);
  EXPECT_EQ(open_iteration(disk, "/ckpt", 10, alone)->directory(), "/ckpt/iter_0000010.2");
}

TEST(Checkpoint, AnIterationChosenByTheUserMustBeThereAndSound) {
  MemoryFileSystem disk;
  Alone alone;
  ASSERT_TRUE(save_model(disk, {.iteration = 10}).ok);
  ASSERT_TRUE(save_model(disk, {.iteration = 20}).ok);
  EXPECT_EQ(open_iteration(disk, "/ckpt", 10, alone)->manifest().iteration, 10);
  EXPECT_THROW(open_iteration(disk, "/ckpt", 15, alone), base::Error);
  EXPECT_EQ(open_path(disk, "/ckpt", 10, alone).reader->manifest().iteration, 10);
  EXPECT_EQ(open_path(disk, "/ckpt/iter_0000010", 0, alone).reader->manifest().iteration, 10);
  EXPECT_THROW(open_path(disk, "/ckpt/iter_0000010", 20, alone), base::Error);
  disk.flip_bit("/ckpt/iter_0000010/manifest.json", 999);
  EXPECT_THROW(open_iteration(disk, "/ckpt", 10, alone), base::Error);
  EXPECT_EQ(sound_iteration(disk), 20);
  disk.remove("/ckpt/iter_0000020/rank_00000.safetensors");
  EXPECT_THROW(newest(disk), base::Error) << "none is sound: that is not the same as none at all";
}

TEST(Checkpoint, AFolderWithoutCheckpointsIsNoErrorAndSaysWhatItHolds) {
  MemoryFileSystem disk;
  EXPECT_EQ(newest(disk).reader, nullptr);
  disk.make_directory("/ckpt");
  disk.make_directory("/ckpt/.tmp-iter_0000010");
  EXPECT_EQ(newest(disk).reader, nullptr);
  EXPECT_TRUE(newest(disk).others.empty());
  disk.make_directory("/ckpt/iter_12");
  disk.replace_file("/ckpt/pytorch_model.bin", "x");
  EXPECT_EQ(newest(disk).others, (std::vector<std::string>{"iter_12", "pytorch_model.bin"}));
  Alone alone;
  EXPECT_THROW(open_path(disk, "/ckpt/pytorch_model.bin", 0, alone), base::Error);
}

TEST(Checkpoint, TwoRunsCannotSaveIntoOneFolderAtOnce) {
  MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.iteration = 10}).ok);
  const auto lock = disk.try_lock("/ckpt/.lock");
  const SaveResult result = save_model(disk, {.ranks = 2, .layout = 4, .iteration = 20});
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.error.find("another run"), std::string::npos) << result.error;
  EXPECT_EQ(sound_iteration(disk), 10);
}

TEST(Checkpoint, TwoWritersThatRaceLeaveASoundFolder) {
  MemoryFileSystem disk;
  std::thread first([&] {
    for (int64_t i = 1; i <= 20; ++i) save_model(disk, {.ranks = 2, .layout = 4, .iteration = i});
  });
  std::thread second([&] {
    for (int64_t i = 1; i <= 20; ++i) save_model(disk, {.ranks = 1, .layout = 3, .iteration = i});
  });
  first.join();
  second.join();
  EXPECT_GT(sound_iteration(disk), 0);
  EXPECT_TRUE(newest(disk).problems.empty());
}

TEST(Checkpoint, AnIterationSavedAgainReplacesTheFirstWithoutAGap) {
  MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {.layout = 0, .iteration = 10}).ok);
  const SaveResult again = save_model(disk, {.ranks = 2, .layout = 4, .iteration = 10});
  EXPECT_EQ(again.directory, "/ckpt/iter_0000010.2");
  EXPECT_EQ(list_checkpoints(disk, "/ckpt").size(), 1u);
  EXPECT_EQ(sound_iteration(disk), 10);
}

TEST(Checkpoint, PiecesThatDoNotFitTogetherAreRefusedWithTheTensorsName) {
  MemoryFileSystem disk;
  Alone alone;
  const std::vector<float> data(12, 1.0f);
  LocalPiece piece{"layer.weight", "weight", {4, 3}, {0, 0}, {2, 3}, files::Dtype::kF32, data.data()};
  LocalPiece b = piece;
  b.offset = {1, 0};
  b.size = {3, 3};
  EXPECT_NE(
      save(disk, "/ckpt", {}, {piece}, alone).error.find("'layer.weight' (weight) cannot be saved: 6 of its 12"),
      std::string::npos);
  EXPECT_NE(save(disk, "/ckpt", {}, {piece, b}, alone).error.find("overlap"), std::string::npos);
  b.global_shape = {5, 3};
  EXPECT_FALSE(save(disk, "/ckpt", {}, {piece, b}, alone).ok);
  EXPECT_TRUE(list_checkpoints(disk, "/ckpt").empty());
}

TEST(Checkpoint, PiecesAreMadeWhenItIsTheirTurnAndInParts) {
  MemoryFileSystem disk;
  Alone alone;
  const std::vector<float> data{1, 2, 3, 4, 5, 6};
  int alive = 0, most = 0;
  std::vector<LocalPiece> pieces;
  for (const char* name : {"a", "b", "c"}) {
    LocalPiece piece{name, "weight", {6}, {0}, {6}, files::Dtype::kF32};
    piece.produce = [&](const Sink& sink) {
      most = std::max(most, ++alive);
      sink(data.data(), 8);
      sink(data.data() + 2, 16);
      --alive;
    };
    pieces.push_back(piece);
  }
  ASSERT_EQ(save(disk, "/ckpt", {.iteration = 5}, pieces, alone).error, "");
  EXPECT_EQ(most, 1);
  const Found found = newest(disk);
  std::vector<float> got(6);
  found.reader->fill({"b", "weight", {6}, {0}, {6}, files::Dtype::kF32, got.data()});
  EXPECT_EQ(got, data);
  pieces[1].produce = [&](const Sink& sink) { sink(data.data(), 8); };
  EXPECT_NE(save(disk, "/ckpt", {.iteration = 6}, pieces, alone).error.find("8 bytes, not 24"), std::string::npos);
}

TEST(Checkpoint, WithoutMemoryTheSaveFailsAndTheOldOneStays) {
  for (const bool at_listing : {true, false}) {
    for (const int rank : {0, 1}) {
      MemoryFileSystem disk;
      ASSERT_TRUE(save_model(disk, {.ranks = 2, .layout = 4, .iteration = 10}).ok);
      const auto dealt = deal(small_model(), 2, 4, 20);
      RankThreads group(2);
      EXPECT_FALSE(group.run([&](Exchange& exchange) {
        const SaveResult result = save(
            disk, "/ckpt", {.iteration = 20},
            [&] {
              std::vector<LocalPiece> pieces;
              for (const OwnedPiece& owned : dealt[static_cast<size_t>(exchange.rank())])
                pieces.push_back(as_local(owned));
              if (exchange.rank() != rank) return pieces;
              if (at_listing) throw std::bad_alloc();
              pieces.back().produce = [](const Sink&) { throw std::bad_alloc(); };
              return pieces;
            },
            exchange);
        EXPECT_FALSE(result.ok);
        EXPECT_NE(result.error.find(base::concat("rank ", rank, ": std::bad_alloc")), std::string::npos)
            << result.error;
      }));
      EXPECT_EQ(sound_iteration(disk), 10);
      ASSERT_TRUE(save_model(disk, {.ranks = 2, .layout = 4, .iteration = 20}).ok);
    }
  }
}

TEST(Checkpoint, FilesBesideTheTensorsAreKeptAndVerified) {
  MemoryFileSystem disk;
  Alone alone;
  const std::vector<float> data(6, 1.0F);
  const LocalPiece piece{"a", "weight", {6}, {0}, {6}, files::Dtype::kF32, data.data()};
  RunState state{.iteration = 5, .side_files = {{"tokenizer.model", "pieces"}, {"empty.json", ""}}};
  ASSERT_EQ(save(disk, "/ckpt", state, {piece}, alone).error, "");
  EXPECT_EQ(disk.read("/ckpt/iter_0000005/tokenizer.model"), "pieces");
  state.iteration = 6;
  ASSERT_EQ(save(disk, "/ckpt", state, {piece}, alone).error, "");
  disk.flip_bit("/ckpt/iter_0000006/tokenizer.model", 3);
  const Found found = newest(disk);
  EXPECT_EQ(found.reader->manifest().iteration, 5);
  EXPECT_NE(found.problems.at(0).find("tokenizer.model"), std::string::npos) << found.problems[0];
}

TEST(Checkpoint, TensorsThatNobodyTookAreNamedOnEveryRank) {
  MemoryFileSystem disk;
  const std::vector<ModelTensor> model = small_model();
  ASSERT_TRUE(save_model(disk, {}).ok);
  RankThreads group(2);
  group.run([&](Exchange& exchange) {
    Reader reader(disk, "/ckpt/iter_0000010");
    EXPECT_EQ(reader.unread(exchange).size(), model.size());
    if (exchange.rank() == 1) {
      float got[7];
      reader.fill({"decoder.final_layernorm.weight", "main", {7}, {0}, {7}, files::Dtype::kF32, got});
    }
    for (const ModelTensor& tensor : model) {
      const bool one = tensor.name == "optimizer.step";
      if (exchange.rank() == 0 && !one && tensor.kind != "main") reader.mark_read(tensor.name, tensor.kind);
    }
    reader.mark_read("no such tensor", "weight");
    EXPECT_EQ(reader.unread(exchange), (std::vector<std::string>{"tensor 'optimizer.step' (count)"}));
  });
}

TEST(Checkpoint, ATensorThatDoesNotFitTheRunIsNamed) {
  MemoryFileSystem disk;
  ASSERT_TRUE(save_model(disk, {}).ok);
  const Found found = newest(disk);
  std::vector<char> data(1000);
  const auto complaint = [&](Target target) {
    try {
      found.reader->fill(target);
    } catch (const base::Error& error) { return std::string(error.what()); }
    return std::string("accepted");
  };
  const Target good{"decoder.final_layernorm.weight", "main", {7}, {0}, {7}, files::Dtype::kF32, data.data()};
  EXPECT_EQ(complaint(good), "accepted");
  Target wrong = good;
  wrong.name = "decoder.final_layernorm.weihgt";
  EXPECT_NE(complaint(wrong).find("nearest name is 'decoder.final_layernorm.weight'"), std::string::npos);
  wrong = good;
  wrong.global_shape = {8};
  EXPECT_NE(complaint(wrong).find("has shape [7], but the run requires [8]"), std::string::npos);
  wrong = good;
  wrong.dtype = files::Dtype::kBF16;
  EXPECT_NE(complaint(wrong).find("F32"), std::string::npos);
}

TEST(Directory, NamesReadBackAndNothingElseIsOne) {
  EXPECT_EQ(to_string({10, 1}), "iter_0000010");
  EXPECT_EQ(to_string({123456789, 3}), "iter_123456789.3");
  EXPECT_EQ(parse_name("iter_123456789.3"), (CheckpointName{123456789, 3}));
  for (const char* bad : {"iter_10", "iter_", "iter_0000010.1", "iter_0000010.", "iter_-000010", "iter_0000010x",
                          "iter_00000010", ".tmp-iter_0000010", "iter_99999999999999999999"}) {
    EXPECT_EQ(parse_name(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace metroplex::checkpoint::save_load_test
