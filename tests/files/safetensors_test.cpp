#include "files/safetensors.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/memory_file_system.h"
#include "files/mutate.h"

namespace metroplex::files::safetensors_test {
namespace {

const std::string kVectors = std::string(METROPLEX_SOURCE_DIR) + "/tests/vectors/safetensors/";

std::string read_vector(const std::string& name) {
  PosixFileSystem disk;
  return disk.read(kVectors + name);
}

nlohmann::json vectors() { return nlohmann::json::parse(read_vector("manifest.json")).at("files"); }

Bytes to_bytes(const std::string& text) {
  auto copy = std::make_shared<const std::string>(text);
  return {reinterpret_cast<const std::byte*>(copy->data()), copy->size(), copy};
}

// "" if the file reads as with the library.
std::string compare_contents(const SafetensorsFile& file, const nlohmann::json& expected) {
  std::map<std::string, std::string> metadata(file.metadata().begin(), file.metadata().end());
  const auto& wanted = expected.at("metadata");
  if (nlohmann::json(metadata) != (wanted.is_null() ? nlohmann::json::object() : wanted)) return "metadata differ";
  if (file.tensors().size() != expected.at("tensors").size()) return "another number of tensors";
  for (const auto& [name, tensor] : expected.at("tensors").items()) {
    const TensorInfo* found = file.find(name);
    if (found == nullptr) return "no tensor " + name;
    if (dtype_name(found->dtype) != tensor.at("dtype") || nlohmann::json(found->shape) != tensor.at("shape") ||
        found->end - found->begin != tensor.at("bytes")) {
      return "dtype, shape or bytes of " + name + " differ";
    }
    const bool readable =
        dtype_bits(found->dtype) >= 8 && std::string(dtype_name(found->dtype)).substr(0, 3) != "F8_";
    if (!tensor.contains("values") || !readable || found->dtype == Dtype::kC64) continue;
    for (size_t i = 0; i < tensor.at("values").size(); ++i) {
      const auto& value = tensor.at("values")[i];
      if (!value.is_number() && !value.is_boolean()) continue;  // NaN and infinities are words
      const double expected_value = value.is_boolean() ? value.get<bool>() : value.get<double>();
      if (element_as_double(found->dtype, file.data(*found), i) != expected_value)
        return "values of " + name + " differ";
    }
  }
  return "";
}

TEST(Safetensors, OpensAndRefusesWhatTheLibraryOpensAndRefuses) {
  // The two cases in which we follow the format's specification and the library does not.
  const std::set<std::string> stricter{"edge_duplicate_key.safetensors", "edge_header_leading_space.safetensors"};
  int opened = 0, refused = 0;
  const nlohmann::json all = vectors();
  for (const auto& [name, expected] : all.items()) {
    const bool sound = expected.at("deserialize") == "ok" && !stricter.contains(name);
    try {
      const SafetensorsFile file(to_bytes(read_vector(name)), name);
      EXPECT_TRUE(sound) << name << " must be refused: " << expected.at("what");
      EXPECT_EQ(compare_contents(file, expected), "") << name;
      ++opened;
    } catch (const base::Error& error) {
      EXPECT_FALSE(sound) << name << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << "the file is not named: " << error.what();
      ++refused;
    }
  }
  EXPECT_GE(opened, 24);
  EXPECT_GE(refused, 58);
}

std::string rewrite(const SafetensorsFile& file, WrittenFile& written) {
  MemoryFileSystem disk;
  std::vector<TensorInfo> tensors = file.tensors();
  order_tensors(tensors);
  SafetensorsWriter writer(disk, "/out", tensors, file.metadata());
  for (const TensorInfo& tensor : tensors) {
    writer.write(file.data(*file.find(tensor.name)), tensor.end - tensor.begin);
  }
  written = writer.finish();
  return disk.read("/out");
}

// XXH3-128 of the output of safetensors.serialize (0.8.0, Python) for the tensors of each file. Excludes ok_metadata
// (the library's order of several metadata keys is random), and ok_sub_byte_dtypes (its writer lacks F6).
TEST(Safetensors, WritesTheBytesThatTheLibraryWrites) {
  const std::map<std::string, std::string> sums{{"all_dtypes", "4d74a354289f0376b68833b6af8eb2a2"},
                                                {"empty_between", "edb41123d39b149498714936ccb541b7"},
                                                {"empty_tensor", "bb672c2ccc28fd4fb0f5e7a69cc0181c"},
                                                {"escaped_name", "e75fc04960db968d9b0d85a91a55aa42"},
                                                {"header_not_padded", "87246f7b07eab2251dbb0573ec30c69c"},
                                                {"header_padded", "87246f7b07eab2251dbb0573ec30c69c"},
                                                {"header_pretty", "87246f7b07eab2251dbb0573ec30c69c"},
                                                {"large_rank", "d0002e272a1d9b188a3a2d8d08a85e2c"},
                                                {"many", "fa892a9b998b3bc074976a6c732ec448"},
                                                {"names", "60d1d49671a71124690946facc9fcd48"},
                                                {"no_tensors", "20e3ecbf30e42c5fb25df8cdce94a65a"},
                                                {"no_tensors_metadata", "b817b36082962c880a02e5842a42e0fc"},
                                                {"one", "87246f7b07eab2251dbb0573ec30c69c"},
                                                {"order", "2cad2768973db23ed8367435d45f45b1"},
                                                {"scalar", "b66f73469757785c838cb8a4093f7039"},
                                                {"unaligned_tensor", "2f686d48583e1d7fbb79d564e2c9709a"}};
  for (const auto& [name, sum] : sums) {
    const std::string original = read_vector("ok_" + name + ".safetensors");
    const SafetensorsFile file(to_bytes(original), name);
    WrittenFile written;
    const std::string text = rewrite(file, written);
    EXPECT_EQ(to_hex(checksum(text.data(), text.size())), sum) << name;
    EXPECT_EQ(to_hex(written.checksum), sum) << name;
    EXPECT_EQ(written.bytes, text.size()) << name;
  }
}

TEST(Safetensors, StreamsTensorsLargerThanTheBufferInParts) {
  MemoryFileSystem disk;
  std::vector<TensorInfo> tensors{{"b", Dtype::kU8, {3000000}, 0, 0}, {"a", Dtype::kU8, {5}, 0, 0}};
  order_tensors(tensors);
  std::string large(3000000, 'x');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7);
  SafetensorsWriter writer(disk, "/f", tensors, {{"format", "pt"}});
  writer.write("hello", 5);
  for (size_t at = 0; at < large.size(); at += 299999)
    writer.write(large.data() + at, std::min<size_t>(299999, large.size() - at));
  const WrittenFile written = writer.finish();
  const SafetensorsFile file(disk.map("/f"), "/f");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data(*file.find("b"))), large.size()), large);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data(*file.find("a"))), 5), "hello");
  const std::string text = disk.read("/f");
  EXPECT_EQ(written.checksum, checksum(text.data(), text.size()));
}

TEST(Safetensors, RefusesTwoTensorsOfOneName) {
  std::vector<TensorInfo> tensors{{"w", Dtype::kF32, {1}, 0, 0}, {"w", Dtype::kF16, {1}, 0, 0}};
  EXPECT_THROW(order_tensors(tensors), base::Error);
  std::vector<TensorInfo> reserved{{"__metadata__", Dtype::kF32, {1}, 0, 0}};
  EXPECT_THROW(order_tensors(reserved), base::Error);
}

TEST(Safetensors, SurvivesThousandsOfAlteredFiles) {
  Mutator mutate(17);
  int opened = 0, refused = 0;
  const nlohmann::json all = vectors();
  for (const auto& [name, expected] : all.items()) {
    const std::string original = read_vector(name);
    if (original.size() > 4000) continue;
    for (int i = 0; i < 60; ++i) {
      std::string text = original;
      if (text.size() > 8 && i % 2 == 0) {  // edit the header but not its length
        const uint64_t length = std::min<uint64_t>(static_cast<unsigned char>(text[0]), text.size() - 8);
        const std::string header = mutate(text.substr(8, length));
        const uint64_t edited = header.size();
        text = std::string(reinterpret_cast<const char*>(&edited), 8) + header + text.substr(8 + length);
      } else {
        text = mutate(text);
      }
      try {
        const SafetensorsFile file(to_bytes(text), name);
        uint64_t end = 0;
        for (const TensorInfo& tensor : file.tensors()) end = std::max(end, tensor.end);

        EXPECT_LE(end, text.size());
        ++opened;
      } catch (const base::Error&) { ++refused; }
    }
  }
  EXPECT_GT(opened, 30);  // an edit inside the data section leaves a valid file
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace metroplex::files::safetensors_test
