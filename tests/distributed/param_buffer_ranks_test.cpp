// Values that change while others are in flight: a read always returns the last written value.
#include "distributed/param_buffer.h"

#include "comm/collectives.h"
#include "distributed/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::param_buffer_ranks_test {
namespace {

std::unique_ptr<distributed::ParamBuffer> make_buffer(std::vector<nn::Param>& params, const comm::Group& shard,
                                                      bool align) {
  distributed::FlatLayoutOptions options;
  options.bucket_size = 10;
  options.sharded = true;
  options.num_shards = shard.size();
  options.index = shard.index();
  auto layout = std::make_shared<const distributed::FlatLayout>(pointers(params), options);
  return std::make_unique<distributed::ParamBuffer>(
      layout, shard,
      distributed::ParamBufferOptions{{true}, true, align, false, at::TensorOptions().dtype(at::kDouble)});
}

void write(const distributed::ParamBuffer& buffer, double value) {
  for (const at::Tensor& own : buffer.own_values()) own.fill_(value);
}

TEST(ParamBuffer, ValuesWrittenAfterAGatherBeganAreGatheredAgain) {
  for (const bool align : {false, true}) {
    run_ranks(2, {.dp = 2}, [align](const comm::World& world) {
      const comm::Group& shard = world.groups().dp;
      std::vector<nn::Param> params;
      for (int i = 0; i < 4; ++i) params.push_back(make_param("p" + std::to_string(i), values({12}, i)));
      const auto buffer = make_buffer(params, shard, align);
      const size_t buckets = buffer->layout().buckets().size();
      ASSERT_GT(buckets, 1u);
      write(*buffer, 1);
      buffer->updated();
      comm::all_reduce(at::zeros({1}, at::kDouble), shard);  // completes the gather that began
      write(*buffer, 2);
      buffer->updated();
      for (size_t b = buckets; b-- > 0;) buffer->acquire(b);
      for (const nn::Param& param : params)
        EXPECT_TRUE(at::equal(param.data, at::full({12}, 2.0, at::kDouble))) << param.name << ": " << param.data;
      buffer->finish_gathers();
    });
  }
}

}  // namespace
}  // namespace metroplex::test::param_buffer_ranks_test
