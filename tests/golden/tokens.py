"""Tokens by other people's programs: tiktoken for GPT-2, tokenizers for a tokenizer.json.

    pip install tiktoken tokenizers
    python tests/golden/tokens.py tests/golden [ASSETS]

Writes tokenizer.json (a small byte-level BPE with Llama 3's expression, trained here on this file) and tokens.json: texts, and the
tokens of both. tiktoken fetches GPT-2's vocabulary, which it calls r50k_base, and checks its hash; without a network, ASSETS is a
directory with r50k_base.tiktoken, e.g. `assets` of the crate tiktoken-rs, which passes the same check.
"""

import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

out = pathlib.Path(sys.argv[1])
if len(sys.argv) > 2:
    cache = tempfile.mkdtemp()
    name = "r50k_base.tiktoken"
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}"
    shutil.copy(pathlib.Path(sys.argv[2]) / name, pathlib.Path(cache) / hashlib.sha1(url.encode()).hexdigest())
    os.environ["TIKTOKEN_CACHE_DIR"] = cache

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

EXPRESSION = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXTS = [
    "",
    "Hello, world!",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
    "  leading, trailing  and   inner    blanks\t\ttabs \n\n\n lines\r\n\r\nend   ",
    "I'll we've they're it's you'd don't I'M WE'VE 'tis",
    "numbers 1 12 123 1234 12345 3.14159 1e-5 0xff 2026-11-30",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; naïve façade, coöperate.",
    "日本語のテキスト。中文文本，没有空格。한국어 텍스트 العربية עברית हिन्दी ไทย",
    "emoji 🙂👩‍👩‍👧‍👦🏳️‍🌈 combining e\u0301 a\u0308 zero\u200bwidth nbsp\u00a0here em\u2003space",
    "<|endoftext|> in the text <|begin_of_text|> and </s>",
    "fn main() { let x: Vec<u32> = (0..10).map(|i| i * i).collect(); println!(\"{x:?}\"); }\n",
    "def f(x):\n    return {\n        'a': [1, 2, 3],\n    }\n\n\nclass A:\n\tpass\n",
    "https://example.org/a_b-c?d=e&f=%20#g user@example.org C:\\path\\file.txt",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!?!?!?...---***===~~~ ((([[[{{{<<<>>>}}}]]])))",
    "\x00\x01\x1f\x7f control\x0b\x0cchars\u0085 and \ufeffBOM \ufffd",
]

small = Tokenizer(models.BPE(byte_fallback=False))
small.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(EXPRESSION), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
)
small.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=600,
    special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
small.train_from_iterator([pathlib.Path(__file__).read_text(encoding="utf-8")] * 2, trainer)
small.post_processor = processors.TemplateProcessing(
    single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", small.token_to_id("<|begin_of_text|>"))]
)
small.save(str(out / "tokenizer.json"), pretty=False)

gpt2 = tiktoken.get_encoding("r50k_base")
cases = [
    {
        "text": text,
        "gpt2": gpt2.encode_ordinary(text),
        "tokenizer.json": small.encode(text, add_special_tokens=False).ids,
    }
    for text in TEXTS
]
(out / "tokens.json").write_text(
    json.dumps(
        {"tiktoken": tiktoken.__version__, "tokenizers": __import__("tokenizers").__version__, "cases": cases},
        ensure_ascii=True,
        separators=(",", ":"),
    )
    + "\n"
)
