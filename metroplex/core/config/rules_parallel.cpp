// Rules for the ranks and the pipeline.
#include "config/rules.h"

#include <algorithm>
#include <sstream>

#include "config/derived.h"

namespace metroplex::config {

using base::concat;

void check_ranks(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const int64_t model_ranks = parallel.tp() * parallel.pp() * parallel.cp();
  rules.require(rules.world_size % model_ranks == 0, "parallel.tensor_model_parallel_size", parallel.tp(),
                concat("tp * pp * cp = ", model_ranks, " (with ",
                       key_is("parallel.pipeline_model_parallel_size", parallel.pp()), ", ",
                       key_is("parallel.context_parallel_size", parallel.cp()), ") must divide the ",
                       rules.world_size, " ranks"),
                concat("start a multiple of ", model_ranks, " ranks, or choose sizes whose product divides ",
                       rules.world_size));
  std::vector<std::string> axes;
  std::istringstream stream(parallel.order);
  for (std::string axis; std::getline(stream, axis, '-');) axes.push_back(axis);
  const std::pair<const char*, int64_t> sizes[] = {
      {"tp", parallel.tp()}, {"cp", parallel.cp()}, {"ep", parallel.ep()}, {"dp", 2}, {"pp", parallel.pp()}};
  bool known = true, complete = true;
  for (const auto& axis : axes) {
    known &= std::any_of(std::begin(sizes), std::end(sizes), [&](const auto& size) { return axis == size.first; }) &&
             std::count(axes.begin(), axes.end(), axis) == 1;
  }
  for (const auto& [axis, size] : sizes) complete &= size == 1 || std::count(axes.begin(), axes.end(), axis) == 1;
  rules.require(known && complete, "parallel.order", parallel.order,
                "must name tp, cp, ep, dp and pp once each, with - between (those of size 1 may be left out)",
                "use tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
  const bool pp_last = parallel.pp() == 1 || axes.empty() || axes.back() == "pp";
  const int64_t expert_ranks = parallel.etp() * parallel.ep(), layer_ranks = parallel.tp() * parallel.cp();
  rules.require(pp_last || expert_ranks == layer_ranks, "parallel.order", parallel.order,
                concat("must end with pp if etp * ep (", expert_ranks, ") is not tp * cp (", layer_ranks,
                       "), also in a model without experts"),
                "use tp-cp-ep-dp-pp");
}

static void check_even_split(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const int64_t layers = rules.config.model.num_layers, stages = parallel.pp() * parallel.vpp();
  const bool other_way =
      !parallel.pipeline_model_parallel_layout.empty() || parallel.decoder_first_pipeline_num_layers > 0 ||
      parallel.decoder_last_pipeline_num_layers > 0 || parallel.account_for_embedding_in_pipeline_split ||
      parallel.account_for_loss_in_pipeline_split;
  rules.require(other_way || layers % stages == 0, "model.num_layers", layers,
                concat("must be a multiple of the ", stages, " stages (",
                       key_is("parallel.pipeline_model_parallel_size", parallel.pp()), ", ",
                       key_is("parallel.virtual_pipeline_model_parallel_size", parallel.vpp()), ")"),
                "change the layers or the stages, or place layers with decoder_first_pipeline_num_layers or "
                "pipeline_model_parallel_layout");
  const int64_t ends = parallel.decoder_first_pipeline_num_layers + parallel.decoder_last_pipeline_num_layers;
  rules.require(ends == 0 || parallel.pp() > 1, "parallel.pipeline_model_parallel_size", parallel.pp(),
                "must be above 1 if the end stages have their own numbers of layers "
                "(parallel.decoder_first_pipeline_num_layers, "
                "parallel.decoder_last_pipeline_num_layers)",
                "set both to 0 or use more stages");
  rules.require(ends <= layers, "model.num_layers", layers,
                concat("is less than the ", ends, " layers of the end stages"), "give the end stages fewer layers");
}

static void check_expert_overlap(Rules& rules, Schedule order) {
  const Config& config = rules.config;
  const Parallel& parallel = config.parallel;
  const char* const key = "parallel.overlap_moe_expert_parallel_comm";
  const char* const off = "turn it off";
  const std::string schedule_name = Choice<Schedule>(order).text();
  if (parallel.overlap_moe_expert_parallel_comm) {
    const bool pairs = order == Schedule::none || order == Schedule::one_f_one_b || order == Schedule::interleaved ||
                       order == Schedule::dualpipe_v;
    rules.require(pairs, key, "true", concat("excludes parallel.pipeline_schedule = ", schedule_name),
                  "use none, 1f1b, interleaved or dualpipe_v");
    rules.require(config.model.has_experts() && parallel.ep() > 1, key, "true",
                  "needs experts on several ranks (parallel.expert_model_parallel_size > 1)", off);
    rules.require(
        config.parallel.data_parallel_sharding_strategy != ShardingStrategy::optim_grads_params, key, "true",
        "excludes parallel.data_parallel_sharding_strategy = optim_grads_params, which gathers parameters in "
        "the order of a single pass",
        "use optim_grads");
    rules.require(config.memory.offload_activations == Offload::none, key, "true",
                  concat("excludes memory.offload_activations = ", config.memory.offload_activations.text()), off);
    rules.require(!config.train.captures_parts(), key, "true",
                  concat("excludes train.cuda_graph_impl = ", config.train.cuda_graph_impl.text(),
                         ", whose graphs contain the waits for exchanges"),
                  "use train.cuda_graph_impl = full_iteration");
  }
  rules.require(!parallel.delay_wgrad_compute || parallel.overlap_moe_expert_parallel_comm,
                "parallel.delay_wgrad_compute", "true", "needs parallel.overlap_moe_expert_parallel_comm", off);
  rules.require(!parallel.delay_wgrad_compute || !config.model.moe_enable_echo, "parallel.delay_wgrad_compute",
                "true", "excludes model.moe_enable_echo, which exchanges gradients of replicas within the backward",
                off);
  rules.require(!parallel.defer_embedding_wgrad_compute || splits_backward(parallel),
                "parallel.defer_embedding_wgrad_compute", "true",
                concat("needs a schedule with weight actions, but parallel.pipeline_schedule = ", schedule_name),
                "use zb_h1, zb_v or dualpipe_v, or turn it off");
}

void check_pipeline(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const int64_t vpp = virtual_stages(parallel);
  check_even_split(rules);
  const std::string stages = key_is("parallel.pipeline_model_parallel_size", parallel.pp());
  rules.require(vpp == 1 || parallel.pp() > 1, "parallel.virtual_pipeline_model_parallel_size", vpp,
                "needs a pipeline, but " + stages, "set it to 1 or use more pipeline stages");
  const Choice<Schedule> order = schedule(parallel);
  rules.require(order != Schedule::none || parallel.pp() == 1, "parallel.pipeline_schedule", order,
                "needs one stage, but " + stages, "use auto");
  rules.require(order != Schedule::interleaved || vpp > 1, "parallel.pipeline_schedule", order,
                "needs virtual stages, but parallel.virtual_pipeline_model_parallel_size = 1",
                "use auto, or set virtual stages");
  const bool one_chunk = order == Schedule::one_f_one_b || order == Schedule::gpipe || order == Schedule::zb_h1 ||
                         order == Schedule::zb_h2;
  rules.require(!one_chunk || vpp == 1, "parallel.pipeline_schedule", order,
                key_is("has no virtual stages, but parallel.virtual_pipeline_model_parallel_size", vpp), "use auto");
  rules.require(!is_v_shaped(order, 1) || vpp == 2, "parallel.pipeline_schedule", order,
                key_is("needs two chunks per rank, but parallel.virtual_pipeline_model_parallel_size", vpp),
                "set parallel.virtual_pipeline_model_parallel_size = 2");
  if (order == Schedule::searched) {
    rules.require(vpp <= 2, "parallel.pipeline_schedule", order,
                  key_is("has one or two chunks per rank, but parallel.virtual_pipeline_model_parallel_size", vpp),
                  "set it to 1 or 2");
    rules.require(read_pipeline_times(parallel).has_value(), "parallel.pipeline_times", parallel.pipeline_times,
                  concat("must be 4 numbers, or ", 4 + parallel.pp(),
                         " with a factor for each pipeline rank: from 0 to 1e12, and neither the first three nor the "
                         "factors all 0"),
                  "write 1,1,1,0");
  }
  const bool splits = splits_backward(order);
  rules.require(!splits || !rules.config.model.moe_enable_echo, "parallel.pipeline_schedule", order,
                "excludes model.moe_enable_echo, which exchanges gradients of replicas within the backward",
                "use 1f1b or interleaved");
  rules.require(!splits || !rules.config.train.captures_parts(), "parallel.pipeline_schedule", order,
                concat("excludes train.cuda_graph_impl = ", rules.config.train.cuda_graph_impl.text(),
                       ", whose captured backwards contain their weight gradients"),
                "use train.cuda_graph_impl = full_iteration, or 1f1b");
  check_expert_overlap(rules, order);
  rules.require(!parallel.overlap_p2p_comm || vpp > 1, "parallel.overlap_p2p_comm", "true",
                "needs the interleaved schedule: parallel.virtual_pipeline_model_parallel_size is 1", "turn it off");
  const int64_t group = parallel.microbatch_group_size_per_vp_stage;
  rules.require(group == 0 || vpp == 1 || group >= parallel.pp(), "parallel.microbatch_group_size_per_vp_stage",
                group, "must be at least " + stages, "use 0");
}

}  // namespace metroplex::config
