#include "pickle/value_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "pickle/archive.h"
#include "pickle/torch_file.h"
#include "support/error_of.h"

namespace metroplex::pickle::writer_test {
namespace {

files::Bytes to_bytes(const std::string& text) {
  auto copy = std::make_shared<const std::string>(text);
  return {reinterpret_cast<const std::byte*>(copy->data()), copy->size(), copy};
}

Sink append_to(std::string& text) {
  return [&text](const void* data, size_t size) { text.append(static_cast<const char*>(data), size); };
}

TEST(ValueWriter, WritesScalars) {
  constexpr int64_t kIntegers[] = {0, 255, -1, 2147483647, 2147483648, std::numeric_limits<int64_t>::min()};
  ValueWriter writer;
  writer.begin_list();
  for (const int64_t value : kIntegers) writer.integer(value);
  writer.real(0.1);
  writer.text("a\n\xc3\xa9");
  writer.boolean(true);
  writer.boolean(false);
  writer.none();
  writer.end_list();
  const std::string pickle = writer.take();
  const Document document(pickle, "values");
  const auto& items = document.sequence(document.root(), "values");
  ASSERT_EQ(items.size(), std::size(kIntegers) + 5);
  for (size_t i = 0; i < std::size(kIntegers); ++i) EXPECT_EQ(document.integer(*items[i], "a value"), kIntegers[i]);
  const Value* const* next = &items[std::size(kIntegers)];
  EXPECT_EQ(next[0]->real, 0.1);
  EXPECT_EQ(next[1]->text, "a\n\xc3\xa9");
  EXPECT_TRUE(next[2]->kind == Kind::boolean && next[2]->integer == 1);
  EXPECT_TRUE(next[3]->kind == Kind::boolean && next[3]->integer == 0);
  EXPECT_EQ(next[4]->kind, Kind::none);
}

TEST(ValueWriter, WritesObjects) {
  ValueWriter writer;
  writer.global("argparse.Namespace");
  writer.integers({});
  writer.create();
  writer.begin_dict();
  writer.text("shape");
  writer.global("torch.Size");
  writer.begin_tuple();
  writer.integers({2, 3});
  writer.end_tuple();
  writer.call();
  writer.text("dtype");
  writer.global("torch.bfloat16");
  writer.end_dict();
  writer.set_state();
  const std::string pickle = writer.take();
  const Document document(pickle, "values");
  EXPECT_TRUE(document.root().is_object("argparse.Namespace"));
  EXPECT_EQ(document.integers(document.get(document.root(), "shape"), "a shape"), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(document.get(document.root(), "dtype").is_global("torch.bfloat16"));
}

TEST(TensorFile, IsReadBack) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::string text = "before";
  const auto size = write_tensor_file(append_to(text), files::Dtype::kF32, {2, 3}, [&](const Sink& sink) {
    sink(values.data(), 4);
    sink(&values[1], 20);
  });
  EXPECT_EQ(size, text.size() - 6);
  const files::Bytes bytes = to_bytes(text);
  const TorchFile file(bytes, "file.distcp", 6, size);
  file.verify();
  const Tensor tensor = file.tensor(file.document().root());
  EXPECT_EQ(tensor.dtype, files::Dtype::kF32);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(tensor.data, values.data(), 24), 0);
  EXPECT_EQ((tensor.data - bytes.data - 6) % 64, 0);
  text[static_cast<size_t>(tensor.data - bytes.data)] ^= 1;
  EXPECT_NE(test::catch_error([&] {
              TorchFile(to_bytes(text), "file.distcp", 6, size).verify();
            }).find("the checksum of data/0 is wrong"),
            std::string::npos);
}

TEST(TensorFile, HasEveryDtypeOfTorch) {
  using files::Dtype;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64, Dtype::kI64, Dtype::kI32,
                            Dtype::kI16, Dtype::kI8, Dtype::kU8, Dtype::kBool}) {
    std::string text;
    write_tensor_file(append_to(text), dtype, {},
                      [&](const Sink& sink) { sink("12345678", static_cast<size_t>(files::dtype_bits(dtype)) / 8); });
    const TorchFile file(to_bytes(text), "file.pt");
    EXPECT_EQ(file.tensor(file.document().root()).dtype, dtype);
  }
  EXPECT_NE(test::catch_error([] {
              write_tensor_file([](const void*, size_t) {}, Dtype::kF4, {1}, [](const Sink&) {});
            }).find("must be a type of PyTorch"),
            std::string::npos);
}

TEST(ArchiveWriter, HasEveryEntry) {
  std::string text;
  ArchiveWriter archive(append_to(text), "folder");
  archive.add("first", "abc");
  archive.add("empty", "");
  archive.begin("parts", 4);
  archive.write("12");
  archive.write("34");
  archive.end();
  const uint64_t size = archive.finish();
  EXPECT_EQ(size, text.size());
  const std::vector<ArchiveEntry> entries = read_archive(text, "archive");
  ASSERT_EQ(entries.size(), 3U);
  const std::pair<const char*, const char*> expected[] = {
      {"folder/first", "abc"}, {"folder/empty", ""}, {"folder/parts", "1234"}};
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].name, expected[i].first);
    EXPECT_EQ(entries[i].data, expected[i].second);
    EXPECT_EQ(entries[i].crc32, compute_crc32(expected[i].second));
    EXPECT_EQ((entries[i].data.data() - text.data()) % 64, 0);
  }
}

}  // namespace
}  // namespace metroplex::pickle::writer_test
