#include "pickle/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "files/mutate.h"
#include "pickle/archive.h"
#include "support/error_of.h"

namespace metroplex::pickle::torch_file_test {
namespace {

const std::string kFile = std::string(METROPLEX_SOURCE_DIR) +
                          "/tests/vectors/megatron_checkpoints/gpt_legacy/iter_0000007/mp_rank_00/model_optim_rng.pt";

files::Bytes to_bytes(const std::string& text) {
  auto copy = std::make_shared<const std::string>(text);
  return {reinterpret_cast<const std::byte*>(copy->data()), copy->size(), copy};
}

std::string read_recorded() {
  files::PosixFileSystem disk;
  return disk.read(kFile);
}

// Reads every tensor of the model.
int64_t read_tensors(const TorchFile& file) {
  const Document& document = file.document();
  int64_t elements = 0;
  const auto& pairs = document.pairs(document.get(document.root(), "model"), "model");
  for (size_t i = 1; i < pairs.size(); i += 2) {
    if (!TorchFile::is_tensor(*pairs[i])) continue;
    const Tensor tensor = file.tensor(*pairs[i]);
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    volatile double sum = 0;
    for (int64_t n = 0; n < count; ++n)
      sum = sum + files::element_as_double(tensor.dtype, tensor.data, static_cast<uint64_t>(n));
    elements += count;
  }
  return elements;
}

TEST(TorchFile, ReadsTensors) {
  const TorchFile file(to_bytes(read_recorded()), "file.pt");
  file.verify();
  const Document& document = file.document();
  const Value& model = document.get(document.root(), "model");
  const Tensor table = file.tensor(document.get(model, "embedding.word_embeddings.weight"));
  EXPECT_EQ(table.shape, (std::vector<int64_t>{40, 16}));
  EXPECT_EQ(table.dtype, files::Dtype::kF32);
  EXPECT_EQ(read_tensors(file), 4848);  // elements of gpt/weights.safetensors
}

TEST(TorchFile, ReadsAnItemOfAFile) {
  const std::string item = read_recorded();
  const TorchFile file(to_bytes("before" + item + "after"), "file.distcp", 6, item.size());
  EXPECT_EQ(read_tensors(file), 4848);  // elements of gpt/weights.safetensors
  EXPECT_NE(test::catch_error([&] {
              TorchFile(to_bytes(item), "file.distcp", 6, item.size());
            }).find("damaged or incomplete"),
            std::string::npos);
}

TEST(TorchFile, DetectsFlippedBits) {
  std::string text = read_recorded();
  const TorchFile before(to_bytes(text), "file.pt");
  const Document& document = before.document();
  const Value& table = document.get(document.get(document.root(), "model"), "embedding.word_embeddings.weight");
  const std::string bytes(reinterpret_cast<const char*>(before.tensor(table).data), 64);
  text[text.find(bytes)] ^= 1;
  const TorchFile after(to_bytes(text), "file.pt");
  EXPECT_NE(test::catch_error([&] { after.verify(); }).find("the checksum of data/"), std::string::npos);
}

TEST(TorchFile, RejectsTensorsOutsideStorages) {
  const std::string shape = "K\x28K\x10\x86", before = std::string("K\0", 2) + shape;  // offset 0, (40, 16)
  const auto error = [&](const std::string& replaced) {
    std::string text = read_recorded();
    text.replace(text.find(before), before.size(), replaced);
    return test::catch_error([&] { read_tensors(TorchFile(to_bytes(text), "file.pt")); });
  };
  EXPECT_EQ(error(before), "");
  EXPECT_NE(error("K\x01" + shape).find("a tensor exceeds its storage data/"), std::string::npos);
  EXPECT_NE(error(std::string("K\0", 2) + "K\x28K\x11\x86").find("a tensor exceeds its storage"), std::string::npos);
  EXPECT_NE(error(std::string("K\0", 2) + "K\x10K\x28\x86").find("a tensor is not contiguous"), std::string::npos);
}

// Damaged files are read or rejected with an error, and no read leaves the file (run under the address sanitizer).
TEST(TorchFile, RejectsDamagedFiles) {
  const std::string text = read_recorded();
  int rejected = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    files::Mutator mutate(seed);
    // The pickle at the start and the directory at the end of the file have the lengths.
    const size_t head = text.find("PK\x03\x04", 4), tail = text.rfind("PK\x01\x02") - 2000;
    std::string damaged = seed % 3 == 0 ? mutate(text)
                          : seed % 3 == 1
                              ? text.substr(0, 64) + mutate(text.substr(64, head - 64)) + text.substr(head)
                              : text.substr(0, tail) + mutate(text.substr(tail));
    if (seed % 3 == 1 && damaged.size() != text.size()) damaged.resize(text.size(), 'x');
    try {
      const TorchFile file(to_bytes(damaged), "file.pt");
      read_tensors(file);
    } catch (const base::Error& error) {
      ++rejected;
      EXPECT_NE(std::string(error.what()).find("file.pt"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(rejected, 500);
}

TEST(Archive, ComputesTheChecksumOfZip) {
  EXPECT_EQ(compute_crc32("123456789"), 0xcbf43926U);
}  // check value of CRC-32

}  // namespace
}  // namespace metroplex::pickle::torch_file_test
