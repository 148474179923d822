"""How far two records of one run are apart."""

# Other kernels add up in another order; in bf16 and fp16 they also round at other places, and Adam magnifies that.
ALLOWED = {"fp32": {"loss": 1e-6, "norm": 1e-6, "grads": 1e-6, "params": 1e-6, "qkv.bias": 1e-3}}
ALLOWED["bf16"] = {"loss": 1e-3, "norm": 1e-2, "grads": 1e-3, "params": 1e-2, "qkv.bias": 1e-2}
ALLOWED["fp16"] = {"loss": 1e-4, "norm": 1e-3, "grads": 1e-4, "params": 1e-3, "qkv.bias": 1e-3}


def differences(got, wanted):
    """Worst absolute differences (norm: relative), and whether names, learning rates, scales and updates agree.
    qkv.bias: its key part has a gradient of zero, whose rounding noise Adam turns into whole steps."""
    worst = {"loss": 0.0, "norm": 0.0, "grads": 0.0, "params": 0.0, "qkv.bias": 0.0}
    agree = len(got["history"]) == len(wanted["history"])
    for mine, theirs in zip(got["history"], wanted["history"]):
        worst["loss"] = max(worst["loss"], abs(mine["loss"] - theirs["loss"]))
        agree &= all(mine[key] == theirs[key] for key in ("update_ok", "loss_scale_used"))
        agree &= abs(mine["lr_used"] - theirs["lr_used"]) < 1e-12
        if mine["grad_norm"] is not None and theirs["grad_norm"] is not None:
            worst["norm"] = max(worst["norm"], abs(mine["grad_norm"] / theirs["grad_norm"] - 1))
    for key, part in (("grads", "grads_iter1"), ("params", "final_params")):
        ours, recorded = got.get(part), wanted.get(part)
        agree &= (ours or {}).keys() == (recorded or {}).keys()
        for name in (ours or {}).keys() & (recorded or {}).keys():
            kind = "qkv.bias" if key == "params" and name.endswith("linear_qkv.bias") else key
            worst[kind] = max(worst[kind], of_tensor(ours[name], recorded[name]))
    return worst, agree


def of_tensor(mine, theirs):
    """Of the single values recorded, and of l2 and sum each divided by the root of the number of elements."""
    if mine["shape"] != theirs["shape"]:
        return float("inf")
    root = mine["numel"] ** 0.5
    values = zip(mine["first"] + mine["last"], theirs["first"] + theirs["last"])
    return max([abs(a - b) for a, b in values] + [abs(mine[key] - theirs[key]) / root for key in ("l2", "sum")])


def line(name, got, wanted):
    """The figures in words, and whether they are what other kernels may cost."""
    worst, agree = differences(got, wanted)
    allowed = ALLOWED[wanted["config"].get("precision", "fp32")]
    fits = agree and all(worst[key] <= allowed[key] for key in worst)
    figures = "  ".join(f"{key} {value:.1e}" for key, value in worst.items())
    return f"{name:28s} {figures}  {'same' if agree else 'OTHER'} names and decisions  {'ok' if fits else 'DIFFERS'}", fits
