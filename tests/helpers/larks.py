import llguidance
class _Bytes:
    eos_token_id, bos_token_id = 256, None
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    special_token_ids = [256]
    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())
BYTES = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
class Lark:
    def __init__(self, text):
        self.m = llguidance.LLMatcher(BYTES, llguidance.LLMatcher.grammar_from_lark(text))
        if self.m.is_error(): raise AssertionError(self.m.get_error()+"\n"+text)
        self._mask=None
    def mask(self):
        import llguidance.numpy as n
        b=n.allocate_token_bitmask(1,257); n.fill_next_token_bitmask(self.m,b,0)
        import numpy as np
        return np.unpackbits(b.view(np.uint8),bitorder="little")[:256].astype(bool)
    def allows(self, byte):
        return self.m.validate_tokens([byte])==1
    def accept(self, byte):
        return self.m.consume_tokens([byte]) if self.allows(byte) else False
    @property
    def may_end(self): return self.m.is_accepting()
