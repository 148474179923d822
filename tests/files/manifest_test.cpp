#include "files/manifest.h"

#include <gtest/gtest.h>

#include <functional>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/mutate.h"

namespace metroplex::files::manifest_test {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.iteration = 120;
  manifest.consumed_samples = 7680;
  manifest.config_yaml = "model:\n  hidden_size: 64\n  name: \"\xC3\xA9\"\n";
  manifest.extra = R"({"learning_rate":0.0003,"seed":18446744073709551615})";
  manifest.files = {{"rank_00000.safetensors", 4096, {1, 2}}, {"rank_00001.safetensors", 512, {3, 4}}};
  ManifestTensor weight{{"embedding.word_embeddings.weight", "weight", Dtype::kBF16, {100, 8}}, {}};
  weight.pieces.push_back({{0, 0}, {60, 8}, 0, 480, 0, "weight/embedding.word_embeddings.weight", {5, 6}});
  weight.pieces.push_back({{60, 0}, {40, 8}, 0, 320, 1, "weight/embedding.word_embeddings.weight", {7, 8}});
  ManifestTensor moment{{"final.bias", "exp_avg", Dtype::kF32, {10}}, {}};
  moment.pieces.push_back({{0}, {10}, 0, 3, 0, "exp_avg/final.bias", {9, 10}});
  moment.pieces.push_back({{0}, {10}, 3, 10, 1, "exp_avg/final.bias", {11, 12}});
  ManifestTensor scalar{{"step", "main", Dtype::kF64, {}}, {}};
  scalar.pieces.push_back({{}, {}, 0, 1, 0, "main/step", {13, 14}});
  manifest.tensors = {weight, moment, scalar};
  return manifest;
}

std::string remove_first_line(const std::string& text) { return text.substr(text.find("\n") + 1); }

TEST(Manifest, LoadsBackToItself) {
  const std::string text = write_manifest(example());
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(write_manifest(read), text);
  EXPECT_EQ(read.config_yaml, example().config_yaml);
  EXPECT_EQ(read.extra, example().extra);
  ASSERT_EQ(read.tensors.size(), 3u);
  EXPECT_EQ(read.tensors[1].pieces[1].begin, 3);
  EXPECT_EQ(read.tensors[1].pieces[1].end, 10);
  EXPECT_EQ(read.tensors[0].pieces[1].offset, (std::vector<int64_t>{60, 0}));
  EXPECT_EQ(read.tensors[2].shape.size(), 0u);
  EXPECT_TRUE(nlohmann::json::accept(text)) << "any JSON reader must be able to read it";
}

TEST(Manifest, NamesItsParentOrNoneOrDoesNotSay) {
  Manifest manifest = example();
  for (const std::optional<std::string>& parent :
       {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("iter_0000110")}) {
    manifest.parent = parent;
    EXPECT_EQ(parse_manifest(write_manifest(manifest), "m").parent, parent);
  }
}

TEST(Manifest, EveryFlippedBitIsFound) {
  const std::string text = write_manifest(example());
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW(parse_manifest(damaged, "m"), base::Error) << "bit " << bit;
  }
}

TEST(Manifest, EveryTruncationIsFound) {
  const std::string text = write_manifest(example());
  for (size_t size = 0; size < text.size(); ++size)
    EXPECT_THROW(parse_manifest(text.substr(0, size), "m"), base::Error);
}

void expect_refused(const std::string& word, const std::function<void(Manifest&)>& spoil) {
  Manifest manifest = example();
  spoil(manifest);
  try {
    parse_manifest(write_manifest(manifest), "m.json");
    ADD_FAILURE() << "accepted, expected a complaint about " << word;
  } catch (const base::Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_NE(message.find("m.json"), std::string::npos) << message;
  }
}

TEST(Manifest, RefusesWhatItsOwnSumCannotTell) {
  expect_refused("plain name", [](Manifest& m) { m.files[0].name = "../../etc/passwd"; });
  expect_refused("plain name", [](Manifest& m) { m.files[0].name = ".."; });
  expect_refused("plain name", [](Manifest& m) { m.files[0].name = ""; });
  expect_refused("plain name", [](Manifest& m) { m.files[0].name = "manifest.json"; });
  expect_refused("twice", [](Manifest& m) { m.files[1].name = m.files[0].name; });
  expect_refused("twice", [](Manifest& m) { m.tensors.push_back(m.tensors[0]); });
  expect_refused("two pieces", [](Manifest& m) { m.tensors[0].pieces[1].file = 0; });
  expect_refused("names file 2", [](Manifest& m) { m.tensors[0].pieces[1].file = 2; });
  expect_refused("dimension 0", [](Manifest& m) { m.tensors[0].pieces[1].offset[0] = 61; });
  // 2^61 elements of fp64 are 2^64 bytes, which a product overflows to 0.
  expect_refused("too large", [](Manifest& m) {
    m.tensors[2].shape = m.tensors[2].pieces[0].size = {int64_t{1} << 61};
    m.tensors[2].pieces[0].offset = {0};
    m.tensors[2].pieces[0].end = int64_t{1} << 61;
  });
  expect_refused("dimensions", [](Manifest& m) { m.tensors[0].pieces[1].offset.push_back(0); });
  expect_refused("range", [](Manifest& m) { m.tensors[1].pieces[0].end = 11; });
  expect_refused("range", [](Manifest& m) { m.tensors[1].pieces[0].begin = 4; });
  expect_refused("whole number", [](Manifest& m) { m.iteration = -1; });
  expect_refused("too large", [](Manifest& m) { m.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; });
  expect_refused("dtype", [](Manifest& m) { m.tensors[0].dtype = Dtype::kF4; });
}

TEST(Manifest, RefusesAnotherFormatOrVersionAndSaysSo) {
  std::string members = remove_first_line(write_manifest(example()));
  members.replace(members.find("\"version\":1"), 11, "\"version\":2");
  try {
    parse_manifest(seal_manifest(members), "m");
    FAIL() << "version 2 was accepted";
  } catch (const base::Error& error) { EXPECT_NE(std::string(error.what()).find("version 2"), std::string::npos); }
  members = remove_first_line(write_manifest(example()));
  members.replace(members.find("metroplex"), 9, "megaplexe");
  EXPECT_THROW(parse_manifest(seal_manifest(members), "m"), base::Error);
}

// The checksum is corrected after each edit, so that the test reaches the parser.
TEST(Manifest, SurvivesThousandsOfAlteredFiles) {
  const std::string members = remove_first_line(write_manifest(example()));
  Mutator mutate(5);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 4000; ++i) {
    try {
      const Manifest manifest = parse_manifest(seal_manifest(mutate(members)), "m");
      for (const ManifestTensor& tensor : manifest.tensors) {
        for (const ManifestPiece& piece : tensor.pieces) {
          ASSERT_LE(piece.end, element_count(piece.size));
          ASSERT_LT(piece.file, static_cast<int64_t>(manifest.files.size()));
        }
      }
      ++accepted;
    } catch (const base::Error&) { ++refused; }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

TEST(Manifest, CountsElementsWithoutOverflow) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 4}), 12);
  EXPECT_EQ(element_count({int64_t{1} << 62, 0, int64_t{1} << 62}), 0);
  EXPECT_EQ(element_count({int64_t{1} << 32, int64_t{1} << 32}), -1);
  EXPECT_EQ(element_count({-1, 0}), -1);
}

}  // namespace
}  // namespace metroplex::files::manifest_test
