#include "files/indexed_dataset.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "files/memory_file_system.h"
#include "support/error_of.h"

namespace metroplex::files::indexed_dataset_test {
namespace {

Bytes to_bytes(const std::string& text) {
  auto owner = std::make_shared<const std::string>(text);
  return {reinterpret_cast<const std::byte*>(owner->data()), owner->size(), owner};
}

struct Files {
  std::string idx, bin;
};

// Five sequences in three documents, one of them empty.
Files example(TokenType type, bool modes) {
  MemoryFileSystem disk;
  IndexedDatasetWriter writer(disk, "/set", type, modes);
  const std::vector<std::vector<int64_t>> sequences{{1, 2, 3}, {4}, {}, {5, 6, 7, 8}, {9, 10}};
  for (size_t i = 0; i < sequences.size(); ++i) {
    writer.add_sequence(std::span<const int64_t>(sequences[i]), static_cast<int8_t>(i));
    if (i != 0) writer.end_document();
  }
  writer.finalize();
  return {disk.read("/set.idx"), disk.read("/set.bin")};
}

IndexedDataset open(const Files& files) { return {to_bytes(files.idx), to_bytes(files.bin), "set"}; }

std::string refusal(const Files& files) {
  return test::catch_error([&] { open(files); });
}

void put(std::string& text, size_t at, int64_t value) { std::memcpy(text.data() + at, &value, sizeof value); }

// All reads of a reader stay inside the two buffers; the sanitizers check it.
int64_t read_all(const IndexedDataset& dataset) {
  int64_t sum = 0;
  std::vector<double> values;
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
    values.resize(static_cast<size_t>(dataset.length(i)));
    dataset.read(i, 0, dataset.length(i), values.data());
    sum += dataset.length(i) + dataset.mode(i);
  }
  for (int64_t i = 0; i <= dataset.num_documents(); ++i) sum += dataset.document_begin(i);
  return sum;
}

TEST(IndexedDataset, ReadsBackWhatWasWrittenInEveryType) {
  for (int code = 1; code <= 8; ++code) {
    const auto type = static_cast<TokenType>(code);
    const Files files = example(type, false);
    const IndexedDataset dataset = open(files);
    EXPECT_EQ(dataset.type(), type);
    EXPECT_EQ(dataset.num_sequences(), 5);
    EXPECT_EQ(dataset.num_documents(), 4);
    EXPECT_EQ(dataset.num_tokens(), 10);
    std::vector<double> values(4);
    dataset.read(3, 0, 4, values.data());
    EXPECT_EQ(values, (std::vector<double>{5, 6, 7, 8})) << token_type_name(type);
    EXPECT_EQ(files.bin.size(), 10u * static_cast<size_t>(token_type_bytes(type)));
  }
}

TEST(IndexedDataset, KeepsTheModesOfMultimodalSets) {
  const IndexedDataset dataset = open(example(TokenType::i32, true));
  ASSERT_TRUE(dataset.has_modes());
  for (int8_t i = 0; i < 5; ++i) EXPECT_EQ(dataset.mode(i), i);
}

TEST(IndexedDataset, RefusesTokensThatTheTypeCannotHold) {
  MemoryFileSystem disk;
  IndexedDatasetWriter writer(disk, "/set", TokenType::u16);
  const std::vector<int64_t> most{65535}, above{65536}, negative{-1};
  writer.add_sequence(std::span<const int64_t>(most));
  EXPECT_THROW(writer.add_sequence(std::span<const int64_t>(above)), base::Error);
  EXPECT_THROW(writer.add_sequence(std::span<const int64_t>(negative)), base::Error);
  EXPECT_EQ(writer.num_tokens(), 1);
}

TEST(IndexedDataset, RefusesFloatValuesWhereTokensAreAskedFor) {
  const IndexedDataset dataset = open(example(TokenType::f32, false));
  int64_t token = 0;
  EXPECT_THROW(dataset.read(0, 0, 1, &token), base::Error);
}

TEST(IndexedDataset, LeavesNothingBehindWithoutFinalize) {
  MemoryFileSystem disk;
  { IndexedDatasetWriter writer(disk, "/set", TokenType::i32); }
  EXPECT_TRUE(disk.list("/").empty());
}

TEST(IndexedDataset, NeverShowsAnOldIndexBesideNewTokensAfterAPowerCut) {
  MemoryFileSystem disk;
  const auto write = [&](int64_t token, int64_t count) {
    IndexedDatasetWriter writer(disk, "/set", TokenType::i32);
    const std::vector<int64_t> tokens(static_cast<size_t>(count), token);
    writer.add_sequence(std::span<const int64_t>(tokens));
    writer.end_document();
    writer.finalize();
  };
  write(1, 3);
  write(2, 5);
  const auto after = disk.after_power_cut(0);
  const IndexedDataset dataset(*after, "/set");
  EXPECT_EQ(dataset.num_tokens(), 5);
}

TEST(IndexedDataset, AppendsOtherSetsInOrder) {
  MemoryFileSystem disk;
  for (const char* name : {"/a", "/b"}) {
    IndexedDatasetWriter writer(disk, name, TokenType::i32);
    const std::vector<int64_t> tokens{name[1], 7};
    writer.add_sequence(std::span<const int64_t>(tokens));
    writer.end_document();
    writer.finalize();
  }
  IndexedDatasetWriter merged(disk, "/c", TokenType::i32);
  merged.append(IndexedDataset(disk, "/a"));
  merged.append(IndexedDataset(disk, "/b"));
  merged.finalize();
  const IndexedDataset dataset(disk, "/c");
  EXPECT_EQ(dataset.num_documents(), 2);
  int64_t token = 0;
  dataset.read(1, 0, 1, &token);
  EXPECT_EQ(token, 'b');
}

TEST(IndexedDataset, RefusesToAppendAnotherTokenType) {
  MemoryFileSystem disk;
  const Files files = example(TokenType::u16, false);
  IndexedDatasetWriter merged(disk, "/c", TokenType::i32);
  EXPECT_THROW(merged.append(open(files)), base::Error);
}

TEST(IndexedDataset, NamesFileOffsetAndReasonOfEveryFault) {
  const Files good = example(TokenType::i32, false);
  struct Fault {
    const char* what;
    void (*alter)(Files&);
    const char* expected;
  };
  const Fault faults[] = {
      {"magic", [](Files& files) { files.idx[0] = 'X'; }, "offset 0"},
      {"version", [](Files& files) { put(files.idx, 9, 2); }, "offset 9: version 2"},
      {"type", [](Files& files) { files.idx[17] = 9; }, "offset 17: token type code 9"},
      {"sequences", [](Files& files) { put(files.idx, 18, int64_t{1} << 60); }, "offset 18"},
      {"documents", [](Files& files) { put(files.idx, 26, 0); }, "offset 26"},
      {"too short", [](Files& files) { files.idx.resize(20); }, "less than its header"},
      {"cut", [](Files& files) { files.idx.resize(files.idx.size() - 1); }, "'set.idx'"},
      {"negative length", [](Files& files) { files.idx[34 + 3] = '\x80'; }, "offset 34: sequence 0 has length"},
      {"long length", [](Files& files) { files.idx[34] = 100; }, "ends past"},
      {"pointer", [](Files& files) { put(files.idx, 34 + 20 + 8, 4); }, "offset 62: sequence 1 starts at byte 4"},
      {"first document", [](Files& files) { put(files.idx, 34 + 60, 1); }, "offset 94: document entry 0 is 1"},
      {"falling documents", [](Files& files) { put(files.idx, 34 + 60 + 8, 5); }, "document entry 2"},
      {"last document", [](Files& files) { put(files.idx, 34 + 60 + 32, 4); }, "document entry 4 is 4"},
      {"short tokens", [](Files& files) { files.bin.resize(files.bin.size() - 1); }, "set.bin"},
      {"long tokens", [](Files& files) { files.bin += "1234"; }, "has 44 bytes, but its index accounts for 40"},
  };
  EXPECT_EQ(refusal(good), "");
  for (const Fault& fault : faults) {
    Files bad = good;
    fault.alter(bad);
    EXPECT_NE(refusal(bad).find(fault.expected), std::string::npos) << fault.what << ": " << refusal(bad);
  }
}

TEST(IndexedDataset, DetectsEveryFlippedBitOfLengthsAndPointers) {
  const Files good = example(TokenType::i32, false);
  for (size_t bit = 8 * 34; bit < 8 * (34 + 5 * 12); ++bit) {
    Files bad = good;
    bad.idx[bit / 8] = static_cast<char>(bad.idx[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(refusal(bad), "") << "bit " << bit;
  }
}

TEST(IndexedDataset, SurvivesThousandsOfAlteredIndexes) {
  std::mt19937 random(7);
  int refused = 0;
  constexpr int kRounds = 6000;
  for (int round = 0; round < kRounds; ++round) {
    Files files = example(static_cast<TokenType>(1 + round % 8), round % 16 >= 8);
    std::string& text = round % 5 == 0 ? files.bin : files.idx;
    const size_t changes = 1 + random() % 4;
    for (size_t change = 0; change < changes && !text.empty(); ++change) {
      const size_t at = random() % text.size();
      switch (random() % 5) {
        case 0:
          text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
          break;
        case 1:
          text[at] = static_cast<char>(random());
          break;
        case 2:
          text.resize(at);
          break;
        case 3:
          text.insert(at, 1 + random() % 12, static_cast<char>(random()));
          break;
        default:
          text.replace(at, std::min<size_t>(8, text.size() - at), 8, random() % 2 ? '\xff' : '\0');
          break;
      }
    }
    try {
      EXPECT_GE(read_all(open(files)), 0);
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find("set."), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, kRounds / 2);
}

}  // namespace
}  // namespace metroplex::files::indexed_dataset_test
