// Tensors of a directory that config.json determines.
#include <gtest/gtest.h>

#include "hf/directories.h"
#include "hf/directory.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::constants_test {
namespace {

using test::catch_error;
using test::has;

// Another number of layers changes the slopes of layer 1 from 1/8 to 1/6.
TEST(HfConstants, AreThoseOfTheConfig) {
  files::PosixFileSystem disk;
  const std::string directory = test::kHfCases + "minimax", name = "model.layers.1.self_attn.slope_rate";
  const config::Model model = test::read_hf_model(directory);
  const auto error_of = [&](const config::Model& other) {
    return catch_error([&] { Source(disk, directory, other); });
  };
  config::Model longer = model, deeper = model;
  longer.lightning_chunk_size = 9, deeper.num_layers = 4, deeper.linear_attention_freq = "[1,1,0,0]";
  EXPECT_TRUE(has(error_of(longer), "query_decay is F32 of shape [4, 8, 1], but config.json requires [4, 9, 1]"));
  EXPECT_TRUE(has(error_of(deeper), "element 0 of " + name + " is 0.125")) << error_of(deeper);
  Source source(disk, directory, model);
  EXPECT_EQ(source.find("model.layers.1.self_attn.slope_rate", "weight"), nullptr);
  const test::Folder folder;
  write_weights_directory(disk, source, model, {}, folder.at("half"), {.dtype = files::Dtype::kBF16});
  test::Tensors tensors = test::read_tensors(folder.at("half/model.safetensors"));
  EXPECT_EQ(tensors.at(name).dtype, files::Dtype::kBF16);
  EXPECT_EQ(catch_error([&] { Source(disk, folder.at("half"), model); }), "") << "rounded";
  // A directory without them.
  std::erase_if(tensors,
                [](const auto& tensor) { return has(tensor.first, "_decay") || has(tensor.first, "slope_rate"); });
  std::vector<files::TensorInfo> infos;
  for (const auto& [key, tensor] : tensors) infos.push_back({key, tensor.dtype, tensor.shape, 0, 0});
  files::order_tensors(infos);
  files::SafetensorsWriter writer(disk, folder.at("half/model.safetensors"), infos, {});
  for (const files::TensorInfo& info : infos)
    writer.write(tensors.at(info.name).bytes.data(), tensors.at(info.name).bytes.size());
  writer.finish();
  EXPECT_EQ(catch_error([&] { Source(disk, folder.at("half"), model); }), "") << "missing";
}

}  // namespace
}  // namespace metroplex::hf::constants_test
